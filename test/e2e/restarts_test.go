package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestContainerdRestarts stops and kills containerd, and pulls as soon as it answers: ballastd, which then has to ask
// containerd for layers, has asked in vain in between. Under load it is asked all the time.
func TestContainerdRestarts(t *testing.T) {
	for _, askers := range []int{1, 8} {
		t.Run(fmt.Sprintf("%d askers", askers), func(t *testing.T) {
			t.Parallel()
			n := node.StartNode(t, node.Options{})
			for round := range 4 {
				away, back := context.WithCancel(t.Context())
				var asked sync.WaitGroup
				ask := func() { asked.Go(func() { askContainerd(away, t, n) }) }
				for range askers - 1 {
					ask()
				}
				if round%2 == 0 {
					n.Containerd.Kill()
				} else {
					n.Containerd.Stop(t)
				}
				ask()
				time.Sleep(time.Second)
				if askers == 1 {
					back()
					asked.Wait()
				}
				n.StartContainerd(t)
				data := weights(byte(round), 64<<10)
				n.Registry.Push(t, "ordinary", fmt.Sprint(round), node.Image(t, nil, []node.File{{Path: "data", Mode: 0o644, Data: data}}))
				ref := n.Registry.Ref("ordinary", fmt.Sprint(round))
				mustPull(t, n, "ballast", ref)
				mustPull(t, n, "ballast", push(t, n, converttest.ModelPackRaw(converttest.Files(data))))
				if _, err := n.CRI(t).Pull(ref, ""); err != nil {
					t.Error(err)
				}
				back()
				asked.Wait()
			}
		})
	}
}

// askContainerd has ballastd ask containerd until ctx ends.
func askContainerd(ctx context.Context, t *testing.T, n *node.Node) {
	socket := filepath.Join(n.Run(), "admin.sock")
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://ballastd/v1/health", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if resp, err := client.Do(r); err == nil {
			resp.Body.Close()
		} else if ctx.Err() == nil {
			t.Error(err)
			return
		}
	}
}
