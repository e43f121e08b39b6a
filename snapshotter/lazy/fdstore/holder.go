package fdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The holder keeps descriptors while the daemon does not run. It is a process with one packet
// socket; each request and each answer is one packet:
//
//	keep <name>  with the descriptor   → ok
//	mount <name> with a mount          → ok
//	drop <name>                        → ok
//	take                               → held <name>, with the descriptor; …; ok
//	leave                              → ok, and the holder ends: a successor has what it kept
//	                                   → error <text>
//
// A mount belongs to the descriptor of its name, and is kept and dropped with it under the name and
// MountSuffix.
//
// It ends when it keeps nothing, because descriptors were dropped or are dead, and no daemon is
// connected.

// Limits of the holder.
const (
	maxHeld     = 16
	maxPacket   = 512             // bytes
	holderCheck = 2 * time.Second // interval of checks for dead descriptors
)

// MountSuffix follows the name of a descriptor in that of the mount that belongs to it.
const MountSuffix = ".mount"

// A holder is the state of the holder process.
type holder struct {
	log          *slog.Logger
	manager      string        // socket of the service manager that stores the descriptors too; "" is none
	disconnected chan struct{} // a client disconnected
	leave        func()        // ends the holder

	mu      sync.Mutex     // guards the fields below
	held    map[string]int // file descriptors by name
	clients int
}

// RunHolder keeps descriptors until there are none left, or ctx ends. listener is the socket that
// the daemon created at the path socket. RunHolder closes listener and removes socket at the end.
func RunHolder(ctx context.Context, listener *os.File, socket string, log *slog.Logger) error {
	keepFromKiller(log)
	return runHolder(ctx, listener, socket, &holder{log: log, held: map[string]int{}})
}

// keepFromKiller makes the kernel kill this process last when memory is low.
func keepFromKiller(log *slog.Logger) {
	const file, adj = "/proc/self/oom_score_adj", "-999"
	if now, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(now)) == adj {
		return // by the service manager
	}
	if err := os.WriteFile(file, []byte(adj), 0); err != nil {
		log.Warn("the holder may be killed when memory is low", "err", err)
	}
}

// Stay are the options of ServeHolder.
type Stay struct {
	// Socket is the path of the socket. A holder that answers there hands over what it keeps.
	Socket string
	// NotifySocket is the address ($NOTIFY_SOCKET) of the service manager, which is told when the
	// holder is ready and stores the descriptors too: it passes them to the next holder when this
	// one was killed or restarted. Empty means that there is none.
	NotifySocket string
	// Held are the descriptors that the manager passed; see Passed.
	Held map[string]int
}

// ServeHolder is RunHolder for a holder that runs before the daemon does: it creates the socket and
// runs until ctx ends. It is for daemons whose child processes end with them, as in a container or
// with a control group that is killed as a whole.
func ServeHolder(ctx context.Context, o Stay, log *slog.Logger) error {
	keepFromKiller(log)
	if err := os.MkdirAll(filepath.Dir(o.Socket), 0o700); err != nil {
		return err
	}
	h := &holder{log: log, manager: o.NotifySocket, held: o.Held}
	if h.held == nil {
		h.held = map[string]int{}
	}
	before := h.inherit(o.Socket)
	l, err := listenPacket(o.Socket)
	if err != nil {
		return err
	}
	defer l.Close() // the holder has a copy
	file, err := l.File()
	if err != nil {
		return err
	}
	// With this client it is never idle.
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: o.Socket})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	defer c.Close()
	if before != nil {
		h.replace(before)
	}
	if err := h.tell("READY=1"); err != nil {
		log.Warn("the service manager does not know that the holder is ready", "err", err)
	}
	return runHolder(ctx, file, o.Socket, h)
}

// inherit takes the descriptors of the holder at a socket. It returns a connection to it, or nil if
// there is none.
func (h *holder) inherit(socket string) *net.UnixConn {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: socket})
	if err != nil {
		return nil
	}
	theirs, err := exchange(c, "take", nil)
	if err != nil {
		h.log.Warn("the earlier holder does not answer", "err", err)
		_ = c.Close() // unusable
		return nil
	}
	for name, fd := range theirs {
		if err := h.keep(name, fd); err != nil {
			h.log.Error("a descriptor of the earlier holder is lost", "name", name, "err", err)
		}
	}
	return c
}

// replace ends an earlier holder, from which all is taken. Its daemon connects to this one then.
func (h *holder) replace(c *net.UnixConn) {
	if _, err := exchange(c, "leave", nil); err != nil {
		h.log.Warn("the earlier holder does not end", "err", err)
	}
	_ = c.Close() // nothing left to ask
}

// tell sends a state to the service manager, if there is one.
func (h *holder) tell(state string, fds ...int) error {
	if h.manager == "" {
		return nil
	}
	return notify(h.manager, state, fds...)
}

// runHolder is RunHolder without the settings of the process.
func runHolder(ctx context.Context, listener *os.File, socket string, h *holder) error {
	generic, err := net.FileListener(listener)
	if err := errors.Join(err, listener.Close()); err != nil {
		return fmt.Errorf("holder: %w", err)
	}
	l, ok := generic.(*net.UnixListener)
	if !ok {
		return errors.Join(errors.New("holder: the listening file is not a unix socket"), generic.Close())
	}
	mine, err := os.Lstat(socket)
	if err != nil {
		return errors.Join(fmt.Errorf("holder: %w", err), l.Close())
	}
	h.disconnected = make(chan struct{}, 1)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	h.leave = stop
	var running sync.WaitGroup
	running.Go(func() {
		h.untilIdle(ctx, l)
		_ = l.Close() // ends accepting
	})
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			break
		}
		h.count(1)
		running.Go(func() { h.client(ctx, c) })
	}
	stop()
	running.Wait()
	// A successor may have created a socket at the same path.
	if now, err := os.Lstat(socket); err == nil && os.SameFile(mine, now) {
		_ = os.Remove(socket) // a stale socket is replaced
	}
	for _, fd := range h.held {
		_ = unix.Close(fd) // unused
	}
	return nil
}

func (h *holder) count(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients += n
}

// untilIdle returns when the holder is idle or ctx ends.
func (h *holder) untilIdle(ctx context.Context, l *net.UnixListener) {
	tick := time.NewTicker(holderCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-h.disconnected:
		}
		if h.idle(l) {
			return
		}
	}
}

// idle reports whether there are no descriptors and no clients, including clients that are not
// accepted yet. It closes dead descriptors. Polling for their death instead would wake the holder
// for every event.
func (h *holder) idle(l *net.UnixListener) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, fd := range h.held {
		if !strings.HasSuffix(name, MountSuffix) && Dead(fd) { // mounts cannot be polled
			h.drop(name)
		}
	}
	return len(h.held) == 0 && h.clients == 0 && !waits(l)
}

// waits reports whether a client has connected that is not accepted yet.
func waits(l *net.UnixListener) bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Control(func(fd uintptr) { n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) })
	return err == nil && n > 0
}

// client answers one daemon until it disconnects.
func (h *holder) client(ctx context.Context, c *net.UnixConn) {
	defer func() {
		_ = c.Close() // nothing left to send
		h.count(-1)
		select {
		case h.disconnected <- struct{}{}:
		default:
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := checkPeer(c); err != nil {
		h.log.Warn("refused a connection to the holder", "err", err)
		return
	}
	for {
		message, fds, err := receive(c)
		if err != nil {
			return
		}
		if err := h.request(c, message, fds); err != nil {
			if send(c, "error "+err.Error(), nil) != nil {
				return
			}
		} else if send(c, "ok", nil) != nil {
			return
		}
		if message == "leave" {
			h.leave()
			return
		}
	}
}

// request executes a message. It owns fds.
func (h *holder) request(c *net.UnixConn, message string, fds []int) error {
	verb, name, _ := strings.Cut(message, " ")
	switch {
	case verb == "keep" && len(fds) == 1 && name != "":
		return h.keep(name, fds[0])
	case verb == "mount" && len(fds) == 1 && name != "":
		return h.keep(name+MountSuffix, fds[0])
	}
	closeAll(fds)
	switch verb {
	case "drop":
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(name)
		return nil
	case "leave":
		return nil // after the answer
	case "take":
		h.mu.Lock()
		held := maps.Clone(h.held)
		h.mu.Unlock()
		for name, fd := range held {
			if err := send(c, "held "+name, []int{fd}); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown request %.32q with %d files", message, len(fds))
}

// keep stores a descriptor, replacing one of the same name.
func (h *holder) keep(name string, fd int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.held[name]; !ok && len(h.held) >= maxHeld {
		return errors.Join(errors.New("too many descriptors"), unix.Close(fd))
	}
	h.forget(name) // another copy
	h.held[name] = fd
	// FDPOLL=0: otherwise the manager wakes up for every request of a mount.
	if err := h.tell("FDSTORE=1\nFDNAME="+name+"\nFDPOLL=0", fd); err != nil {
		h.log.Warn("the service manager does not store a descriptor: it is lost if the holder is killed", "name", name, "err", err)
	}
	return nil
}

// drop closes a descriptor and its mount. The caller has h.mu.
func (h *holder) drop(name string) {
	h.forget(name + MountSuffix)
	h.forget(name)
}

// forget closes a descriptor, if there is one of that name. The caller has h.mu.
func (h *holder) forget(name string) {
	fd, ok := h.held[name]
	if !ok {
		return
	}
	delete(h.held, name)
	if err := h.tell("FDSTOREREMOVE=1\nFDNAME=" + name); err != nil {
		h.log.Warn("the service manager does not drop a descriptor", "name", name, "err", err)
	}
	_ = unix.Close(fd) // only kept
}

// checkPeer returns an error if the peer is neither root nor the own user.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(cerr, err); err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("peer has uid %d", cred.Uid)
	}
	return nil
}

// exchange sends a request and returns the descriptors in the answer, which the caller owns.
func exchange(c *net.UnixConn, message string, fds []int) (_ map[string]int, err error) {
	if err := errors.Join(checkPeer(c), c.SetDeadline(time.Now().Add(keeperTimeout))); err != nil {
		return nil, err
	}
	if err := send(c, message, fds); err != nil {
		return nil, err
	}
	got := map[string]int{}
	defer func() {
		if err != nil {
			closeAll(slices.Collect(maps.Values(got)))
		}
	}()
	for {
		answer, fds, err := receive(c)
		if err != nil {
			return nil, err
		}
		verb, rest, _ := strings.Cut(answer, " ")
		_, twice := got[rest]
		switch {
		case verb == "held" && len(fds) == 1 && !twice && len(got) < maxHeld:
			got[rest] = fds[0]
			continue
		case verb == "ok" && len(fds) == 0:
			return got, c.SetDeadline(time.Time{})
		}
		closeAll(fds)
		return nil, fmt.Errorf("holder answers %q", answer)
	}
}

func send(c *net.UnixConn, message string, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := c.WriteMsgUnix([]byte(message), oob, nil)
	return err
}

// receive returns a packet and its file descriptors, which the caller owns.
func receive(c *net.UnixConn) (string, []int, error) {
	buf, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*4))
	n, k, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return "", nil, err
	}
	fds, err := rights(oob[:k])
	if err == nil && (n == 0 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0) {
		err = errors.New("empty or truncated packet")
	}
	if err != nil {
		closeAll(fds)
		return "", nil, err
	}
	return string(buf[:n]), fds, nil
}

// rights returns the file descriptors of a control message.
func rights(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, m := range messages {
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // not used
	}
}
