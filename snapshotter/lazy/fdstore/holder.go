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
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The holder keeps descriptors while the daemon does not run. It is a process with one packet
// socket; each request and each answer is one packet:
//
//	keep <name>  with the descriptor   → ok
//	drop <name>                        → ok
//	take                               → held <name>, with the descriptor; …; ok
//	                                   → error <text>
//
// It ends when it keeps nothing, because descriptors were dropped or are dead, and no daemon is
// connected.

// Limits of the holder.
const (
	maxHeld     = 16
	maxPacket   = 512             // bytes
	holderCheck = 2 * time.Second // interval of checks for dead descriptors
)

// A holder is the state of the holder process.
type holder struct {
	log          *slog.Logger
	disconnected chan struct{} // a client disconnected

	mu      sync.Mutex
	held    map[string]int // file descriptors by name
	clients int
}

// RunHolder keeps descriptors until there are none left, or ctx ends. listener is the socket that
// the daemon created at the path socket. RunHolder closes listener and removes socket at the end.
func RunHolder(ctx context.Context, listener *os.File, socket string, log *slog.Logger) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0); err != nil {
		log.Warn("the holder may be killed when memory is low", "err", err)
	}
	return runHolder(ctx, listener, socket, log)
}

// ServeHolder is RunHolder for a holder that runs before the daemon does: it creates the socket,
// replacing an existing one, and runs until ctx ends. It is for daemons whose child processes end
// with them, as in a container.
func ServeHolder(ctx context.Context, socket string, log *slog.Logger) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return err
	}
	l, err := listenPacket(socket)
	if err != nil {
		return err
	}
	defer l.Close() // the holder has a copy
	file, err := l.File()
	if err != nil {
		return err
	}
	// With this client it is never idle.
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: socket})
	if err != nil {
		return errors.Join(err, file.Close())
	}
	defer c.Close()
	return RunHolder(ctx, file, socket, log)
}

// runHolder is RunHolder without the settings of the process.
func runHolder(ctx context.Context, listener *os.File, socket string, log *slog.Logger) error {
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
	h := &holder{log: log, disconnected: make(chan struct{}, 1), held: map[string]int{}}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
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
		if Dead(fd) {
			_ = unix.Close(fd) // dead
			delete(h.held, name)
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
	}
}

// request executes a message. It owns fds.
func (h *holder) request(c *net.UnixConn, message string, fds []int) error {
	verb, name, _ := strings.Cut(message, " ")
	if verb == "keep" && len(fds) == 1 && name != "" {
		return h.keep(name, fds[0])
	}
	closeAll(fds)
	switch verb {
	case "drop":
		h.mu.Lock()
		defer h.mu.Unlock()
		if fd, ok := h.held[name]; ok {
			delete(h.held, name)
			return unix.Close(fd)
		}
		return nil
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
	if old, ok := h.held[name]; ok {
		_ = unix.Close(old) // another copy
	} else if len(h.held) >= maxHeld {
		return errors.Join(errors.New("too many descriptors"), unix.Close(fd))
	}
	h.held[name] = fd
	return nil
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

// exchange sends a request and returns the descriptors in the answer.
func exchange(c *net.UnixConn, message string, fds []int) (_ map[string]*os.File, err error) {
	if err := errors.Join(checkPeer(c), c.SetDeadline(time.Now().Add(keeperTimeout))); err != nil {
		return nil, err
	}
	if err := send(c, message, fds); err != nil {
		return nil, err
	}
	got := map[string]*os.File{}
	defer func() {
		if err != nil {
			for _, f := range got {
				_ = f.Close() // not returned
			}
		}
	}()
	for {
		answer, fds, err := receive(c)
		if err != nil {
			return nil, err
		}
		verb, rest, _ := strings.Cut(answer, " ")
		switch {
		case verb == "held" && len(fds) == 1 && got[rest] == nil && len(got) < maxHeld:
			got[rest] = os.NewFile(uintptr(fds[0]), rest)
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
