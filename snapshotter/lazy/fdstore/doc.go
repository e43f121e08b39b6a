// Package fdstore keeps file descriptors of a process open while the process does not run.
//
// A descriptor that must outlive its process, such as the connection of a mount, is handed to another
// process, the keeper, which only holds it open. The next instance takes it back by its name.
//
//	keeper   has a copy of the descriptor: the service manager or the holder
//	holder   a small process with a socket, started by the daemon (RunHolder)
//	dead     a descriptor whose other end is closed; it need not be kept
//
// A service manager stores descriptors with systemd's protocol (FDSTORE) and passes them when it
// starts the service again (ListenFiles).
//
//	https://systemd.io/FILE_DESCRIPTOR_STORE/
//
// The holder runs in its own session, so that it does not end with the daemon. It exits when it has no
// descriptors and no daemon is connected. The daemon connects to the socket before it starts the holder
// and stays connected, so it notices when the holder dies and starts another one. A failed handover is
// repeated for as long as the descriptor is served, and once more when serving ends (KeepNow).
//
// The package does not depend on what the descriptors are.
package fdstore
