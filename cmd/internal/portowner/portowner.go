package portowner

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
	"github.com/prometheus/procfs"
)

// maxCommand limits the length of a command line, in bytes, to a line on a terminal.
const maxCommand = 120

// An Owner is the process that listens.
type Owner struct {
	Address string `json:"address"`           // as bound, "host:port"
	UID     int    `json:"uid"`               // the user that created the socket
	PID     int    `json:"pid,omitempty"`     // 0 if unknown
	Command string `json:"command,omitempty"` // command line, made printable
}

// String returns a description for messages.
func (o Owner) String() string {
	if o.PID == 0 {
		return fmt.Sprintf("a process that cannot be seen from here, of uid %d, at %s", o.UID, o.Address)
	}
	return fmt.Sprintf("process %d (%s), uid %d, at %s", o.PID, o.Command, o.UID, o.Address)
}

// Of returns the owner of a socket that listens at address, "host:port", or prevents others from
// doing so. It returns errdefs.ErrNotFound if there is none.
func Of(address string) (Owner, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return Owner{}, err
	}
	port, err := net.LookupPort("tcp", service)
	if err != nil {
		return Owner{}, err
	}
	var want []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil {
		want = append(want, ip.Unmap())
	} else if host == "localhost" {
		want = append(want, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return Owner{}, err
	}
	for _, table := range []func() (procfs.NetTCP, error){proc.NetTCP, proc.NetTCP6} {
		sockets, err := table()
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // no IPv6
			return Owner{}, err
		}
		for _, s := range sockets {
			at, _ := netip.AddrFromSlice(s.LocalAddr)
			if s.St != stateListen || int(s.LocalPort) != port || !conflicts(at.Unmap(), want) {
				continue
			}
			o := Owner{Address: netip.AddrPortFrom(at, uint16(port)).String(), UID: int(s.UID)}
			o.PID, o.Command = processOf(proc, s.Inode)
			return o, nil
		}
	}
	return Owner{}, fmt.Errorf("nobody listens at %s: %w", address, errdefs.ErrNotFound)
}

// conflicts reports whether a socket bound to an address prevents others from binding one of the
// wanted addresses; none means all.
func conflicts(bound netip.Addr, want []netip.Addr) bool {
	if len(want) == 0 || bound.IsUnspecified() {
		return true
	}
	for _, w := range want {
		if w == bound || w.IsUnspecified() {
			return true
		}
	}
	return false
}

// stateListen is TCP_LISTEN of the kernel.
// https://github.com/torvalds/linux/blob/v6.12/include/net/tcp_states.h
const stateListen = 10

// processOf returns a process that has a socket, or 0.
func processOf(proc procfs.FS, inode uint64) (pid int, command string) {
	all, err := proc.AllProcs()
	if err != nil {
		return 0, ""
	}
	for _, p := range all {
		files, err := p.FileDescriptorTargets()
		if err == nil && slices.Contains(files, fmt.Sprintf("socket:[%d]", inode)) { // otherwise it may have ended
			return p.PID, commandOf(p)
		}
	}
	return 0, ""
}

// commandOf returns the command line of a process.
func commandOf(p procfs.Proc) string {
	words, err := p.CmdLine()
	if err != nil || len(words) == 0 {
		name, _ := p.Comm() // it has no command line
		words = []string{name}
	}
	s := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.Join(words, " "))
	s = strings.TrimSpace(s)
	if len(s) > maxCommand {
		s = strings.ToValidUTF8(s[:maxCommand], "") + " …"
	}
	return s
}
