package serve

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits of the connections of a socket for users who are not root.
const (
	userConnections   = 16
	publicConnections = 256 // of all users; one can have the ids of a user namespace
)

// A users is a listener at a unix socket that knows who connects. Of a user with too many connections the oldest is
// closed, so that who opens many, or sends nothing, shuts out nobody else.
type users struct {
	net.Listener

	mu   sync.Mutex
	open []*userConn // guarded by mu: oldest first
}

// A userConn is a connection of a user.
type userConn struct {
	net.Conn
	of  *users
	uid uint32
}

// Accept returns the next connection, a *userConn.
func (u *users) Accept() (net.Conn, error) {
	for {
		c, err := u.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peer(c)
		if err != nil { // it has ended
			_ = c.Close()
			continue
		}
		in := &userConn{c, u, uid}
		if out := u.enter(in); out != nil {
			_ = out.Close()
		}
		return in, nil
	}
}

// enter adds a connection, and returns the one that has to end for it: the oldest of its user, or of the user with
// the most.
func (u *users) enter(c *userConn) (out *userConn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open = append(u.open, c)
	has := map[uint32]int{}
	for _, o := range u.open {
		has[o.uid]++
	}
	most := c.uid
	if has[most] <= userConnections {
		if len(u.open) <= publicConnections {
			return nil
		}
		most = slices.MaxFunc(u.open, func(a, b *userConn) int { return cmp.Compare(has[a.uid], has[b.uid]) }).uid
	}
	return u.open[slices.IndexFunc(u.open, func(o *userConn) bool { return o.uid == most })]
}

// Close closes the connection.
func (c *userConn) Close() error {
	c.of.mu.Lock()
	c.of.open = slices.DeleteFunc(c.of.open, func(o *userConn) bool { return o == c })
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// peer returns the user at the other end of a connection.
func peer(c net.Conn) (uid uint32, err error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = cred.Uid
		}
	})
	return uid, errors.Join(cerr, err)
}

type userKey struct{}

// User returns the user who sent a request to a socket of Public.
func User(ctx context.Context) uint32 {
	uid, _ := ctx.Value(userKey{}).(uint32)
	return uid
}
