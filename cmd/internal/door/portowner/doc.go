// Package portowner finds the process that listens at a TCP address of this machine, as "ss -ltnp"
// does.
//
// The kernel lists listening sockets with the user and the inode of each (/proc/net/tcp and tcp6),
// in the network namespace of the reader; the process is the one with that inode among its files
// (/proc/*/fd). Both need only root to be read. Processes of other PID namespaces are not found:
// then only the user is known.
//
// https://docs.kernel.org/networking/proc_net_tcp.html
package portowner
