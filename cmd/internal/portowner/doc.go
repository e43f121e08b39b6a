// Package portowner says who listens at a TCP address of this machine, as "ss -ltnp" does.
//
// The kernel lists listening sockets with the user and the number of each (/proc/net/tcp and tcp6), in
// the network namespace of the reader; a process is found by that number among its files
// (/proc/*/fd). Both need no more than root to be read, and processes of other PID namespaces are not
// found: then the user is all that is known.
//
// https://docs.kernel.org/networking/proc_net_tcp.html
package portowner
