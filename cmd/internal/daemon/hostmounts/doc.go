// Package hostmounts prepares mounts of models for processes of the host, without containerd.
//
// The daemon prepares what to mount, and the client mounts it in its own mount namespace: a mount
// outlives the daemon, and no client can make the daemon mount something somewhere. So the daemon
// itself detects that a mount is gone, after a reboot or an unmount by another process, and
// releases its model.
package hostmounts
