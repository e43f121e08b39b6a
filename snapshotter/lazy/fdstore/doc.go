// Package fdstore keeps file descriptors of a process open while the process does not run.
//
// A descriptor that must outlive its process, such as the connection of a mount, is handed to another
// process, the keeper, which only holds it open. The next instance takes it back by its name.
//
//	keeper   has a copy of the descriptor: the holder
//	holder   a small process with a socket
//	dead     a descriptor whose other end is closed; it need not be kept
//
// # Holder
//
// A holder that the service manager starts, or a container beside the daemon's (ServeHolder), is not
// killed when the whole control group of the daemon is. It stays without descriptors. It also stores
// them with the service manager by systemd's protocol (FDSTORE), which passes them when it starts the
// holder again, so that they outlive the holder too.
//
//	https://systemd.io/FILE_DESCRIPTOR_STORE/
//
// If none answers, the daemon starts a holder (RunHolder) in its own session, so that it does not end
// with the daemon. It exits when it has no descriptors and no daemon is connected. The daemon connects to
// the socket before it starts the holder.
//
// A holder that finds another one at its socket takes all that it keeps and ends it. The daemon stays
// connected to its holder, so it notices when the holder dies or was replaced, and hands over again or
// starts another one. A failed handover is repeated for as long as the descriptor is served, and once more
// when serving ends (KeepNow).
//
// The package does not depend on what the descriptors are.
package fdstore
