// Package localgrpc connects to the gRPC servers of this machine: containerd, and the daemon itself.
//
// # Servers that restart
//
// After a failure, gRPC waits for a second and more before it connects again, and until then all calls fail with the
// old error, such as "no such file or directory". It is the wrong time to give up: containerd calls the daemon, which
// has to ask containerd, whose socket has just appeared. So a call on a connection of Dial has it made at once, and
// waits for it:
//
//	connected            the call is sent
//	idle, as after loss  it connects now
//	failed               it connects now, and again after at most half a second, until the patience ends; then the call
//	                     fails with the last error. Calls right after it do not wait again while nobody listens
//
// A call is sent once: whether a server that ends meanwhile has done it is not known here.
//
// # Clients of other programs
//
// Each program that ballast asks can restart, with and without requests under way:
//
//	containerd, by the daemon   Patience: what containerd has begun has to succeed, and what people asked for can
//	                            wait for a restart. A call of a containerd that ends is cancelled
//	containerd, by commands     no patience, but a new connection: that containerd does not answer is what they report
//	the daemon, by its own      Patience; its server listens before it is asked
//	watchdog
//	the daemon, by ballast and  HTTP, which connects for a request if it has no connection. The agent looks again after five
//	ballast-fleet               seconds, and repeats what failed
//	the API server              client-go connects for a request. Watches go on by themselves, after at most half a minute;
//	                            a controller that has lost its lease ends, and its Deployment starts it again
//	systemd                     a datagram (sd_notify) or a process (systemctl) for each message
//	the holder of descriptors   a connection for each request; the one that watches it hands over again, after at most a
//	                            minute and when the daemon ends (snapshotter/lazy/fdstore)
//	registries and mirrors,     HTTP. A mirror that failed rests, which means that it is asked after the others, and at once if
//	dfdaemon, Spegel            there is no other (store/transfer.Endpoint)
//
// In the other direction, containerd connects to a daemon that has restarted after at most three seconds.
package localgrpc
