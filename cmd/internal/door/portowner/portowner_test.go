package portowner

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// The owner of a socket of this process is this process, for every address that the socket blocks.
func TestOf(t *testing.T) {
	for _, tt := range []struct{ network, bound, ask string }{
		{"tcp4", "127.0.0.1", "127.0.0.1"},
		{"tcp4", "127.0.0.1", "localhost"},
		{"tcp4", "127.0.0.1", "0.0.0.0"},
		{"tcp4", "127.0.0.1", ""},
		{"tcp4", "0.0.0.0", "127.0.0.1"},
		{"tcp", "", "127.0.0.1"},
		{"tcp6", "::1", "::1"},
	} {
		t.Run(tt.bound+" "+tt.ask, func(t *testing.T) {
			l, err := net.Listen(tt.network, net.JoinHostPort(tt.bound, "0"))
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(l.Addr().String())
			o, err := Of(net.JoinHostPort(tt.ask, port))
			if err != nil {
				t.Fatal(err)
			}
			if o.PID != os.Getpid() || o.UID != os.Getuid() || !strings.Contains(o.Command, os.Args[0]) || !strings.HasSuffix(o.Address, ":"+port) {
				t.Errorf("got %+v", o)
			}
			if o, err := Of("127.0.0.2:" + port); tt.bound == "127.0.0.1" && !errdefs.IsNotFound(err) {
				t.Errorf("another address: %+v, %v", o, err)
			}
			l.Close()
			if o, err := Of(net.JoinHostPort(tt.ask, port)); !errdefs.IsNotFound(err) {
				t.Errorf("closed: %+v, %v; want ErrNotFound", o, err)
			}
		})
	}
	if _, err := Of("no address"); err == nil {
		t.Error("no error for what is no address")
	}
}
