// Package fdstore has somebody keep file descriptors of a process while that does not run.
//
// A descriptor that must outlive the process that works with it, such as the connection of a
// mount, is handed to a second process, and taken back, by its name, by the next process of
// the first kind. Who keeps it holds it open and does nothing with it:
//
//	keeper   who has a copy of the descriptor: the service manager or the holder
//	holder   our keeper, a small process with a socket, which the daemon starts (RunHolder)
//	dead     a descriptor whose other end is gone, which nobody needs to keep
//
// A service manager keeps descriptors by the protocol of systemd (FDSTORE). What it has it
// passes when it starts the service again (ListenFiles).
//
//	https://systemd.io/FILE_DESCRIPTOR_STORE/
//
// The holder has a session of its own, so that what ends the daemon does not end it, and ends
// by itself when it has nothing to keep and no daemon is connected or waits to be. The daemon
// connects to the socket before it starts the holder and stays connected while it runs, and so
// learns when the holder dies; then it starts another one. A descriptor that could not be handed
// over is tried again for as long as it is served, and once more when serving ends (KeepNow).
//
// Nothing here knows what the descriptors are of.
package fdstore
