package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestUsers: a user with too many connections loses its own, the oldest first.
func TestUsers(t *testing.T) {
	var u users
	enter := func(uid uint32) (c, out *userConn) {
		one, other := net.Pipe()
		t.Cleanup(func() { other.Close() })
		c = &userConn{one, &u, uid}
		if out = u.enter(c); out != nil {
			out.Close()
		}
		return c, out
	}
	victim, _ := enter(7)
	var first *userConn
	for i := range 3 * userConnections {
		c, out := enter(1)
		if i == 0 {
			first = c
		}
		switch {
		case i < userConnections && out != nil:
			t.Errorf("connection %d ends one of user %d", i, out.uid)
		case i == userConnections && out != first:
			t.Error("not the oldest has ended")
		case i >= userConnections && (out == nil || out.uid != 1):
			t.Errorf("connection %d ends %v", i, out)
		}
	}
	if len(u.open) != 1+userConnections {
		t.Errorf("%d connections are open", len(u.open))
	}
	for uid := range uint32(2 * publicConnections) { // of users with one each
		if _, out := enter(100 + uid); out == victim {
			t.Fatalf("after %d others, that of a user with one has ended, and others have many", uid)
		}
		if len(u.open) == publicConnections {
			break
		}
	}
	if _, out := enter(99); out == nil || out.uid != 1 {
		t.Errorf("not the user with the most loses one, but %v", out)
	}
	if victim.Close(); len(u.open) > publicConnections {
		t.Errorf("%d connections are open", len(u.open))
	}
}

// dialAs connects to a socket as another user.
func dialAs(path string, uid int) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, and its user with it
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			err = errno
			return
		}
		c, err = net.Dial("unix", path)
	}()
	<-done
	return c, err
}

// TestHostileUser: one member of the group opens connections all the time and sends nothing. Others are answered.
func TestHostileUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be several users")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, User(r.Context())) })
	wait.Go(func() {
		if err := Public(ctx, slog.New(slog.DiscardHandler), answer, l); err != nil {
			t.Error(err)
		}
	})
	const hostile, victim = 4001, 4002
	for range 80 {
		wait.Go(func() {
			for ctx.Err() == nil {
				c, err := dialAs(path, hostile)
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				c.Read(make([]byte, 1))
				stop()
				c.Close()
			}
		})
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return dialAs(path, victim)
	}}}
	for range 10 {
		resp, err := client.Get("http://x/")
		if err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(p) != fmt.Sprint(victim) || err != nil {
			t.Errorf("answer %q, %v", p, err)
		}
	}
}
