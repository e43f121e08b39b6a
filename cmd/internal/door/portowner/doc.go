// Package portowner finds the process that listens at a TCP address of this machine, as "ss -ltnp"
// does.
//
// The kernel lists listening sockets with the user and the inode of each (/proc/net/tcp and tcp6),
// in the network namespace of the reader; the process is the one with that inode among its files
// (/proc/*/fd). The list is for everybody; the files of a process are for who may trace it, as root with
// CAP_SYS_PTRACE, which the unit of ballastd does not give. For others, and for processes of other PID namespaces, only
// the user is known.
//
// https://docs.kernel.org/networking/proc_net_tcp.html
package portowner
