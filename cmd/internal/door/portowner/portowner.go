package portowner

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
)

// maxCommand limits the length of a command line, in bytes, to a line on a terminal.
const maxCommand = 120

// An Owner is the process that listens.
type Owner struct {
	Address string // as bound, "host:port"
	UID     int    // the user that created the socket
	PID     int    // 0 if unknown
	Command string // command line, made printable
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
	for _, name := range []string{"tcp", "tcp6"} {
		sockets, err := listening(filepath.Join("/proc/net", name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // no IPv6
			return Owner{}, err
		}
		for _, s := range sockets {
			if int(s.at.Port()) != port || !conflicts(s.at.Addr().Unmap(), want) {
				continue
			}
			o := Owner{Address: s.at.String(), UID: s.uid}
			o.PID, o.Command = processOf(s.inode)
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

// A socket is a listening socket.
type socket struct {
	at    netip.AddrPort
	uid   int
	inode string
}

// stateListen is TCP_LISTEN as written by the kernel.
// https://github.com/torvalds/linux/blob/v6.12/include/net/tcp_states.h
const stateListen = "0A"

// listening reads a table of sockets of the kernel.
func listening(file string) (l []socket, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
		w := strings.Fields(lines.Text())
		if len(w) < 10 || w[3] != stateListen {
			continue
		}
		at, err := parseAddress(w[1])
		uid, badUID := strconv.Atoi(w[7])
		if err = errors.Join(err, badUID); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		l = append(l, socket{at, uid, w[9]})
	}
	return l, lines.Err()
}

// parseAddress parses an address as written by the kernel: words of 32 bits in memory order, in
// hexadecimal digits, and the port.
func parseAddress(s string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(s, ":")
	p, err := hex.DecodeString(words)
	n, badPort := strconv.ParseUint(port, 16, 16)
	if err = errors.Join(err, badPort); err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i+4 <= len(p); i += 4 {
		binary.NativeEndian.PutUint32(p[i:], binary.BigEndian.Uint32(p[i:]))
	}
	ip, ok := netip.AddrFromSlice(p)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", s)
	}
	return netip.AddrPortFrom(ip, uint16(n)), nil
}

// processOf returns a process that has a socket, or 0.
func processOf(inode string) (pid int, command string) {
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, ""
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err != nil || to != "socket:["+inode+"]" {
			continue // most are of other files, and some processes have ended
		}
		dir := filepath.Dir(filepath.Dir(f))
		if pid, err = strconv.Atoi(filepath.Base(dir)); err != nil {
			continue
		}
		return pid, commandOf(dir)
	}
	return 0, ""
}

// commandOf returns the command line of a process.
func commandOf(dir string) string {
	p, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || len(p) == 0 {
		p, _ = os.ReadFile(filepath.Join(dir, "comm")) // it has no command line
	}
	s := strings.Map(func(r rune) rune {
		if r == 0 || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(p))
	s = strings.TrimSpace(s)
	if len(s) > maxCommand {
		s = strings.ToValidUTF8(s[:maxCommand], "") + " …"
	}
	return s
}
