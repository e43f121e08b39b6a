package cluster

import (
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sync/errgroup"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestPage shows the page of a controller in a browser, with three nodes and with a thousand. The pictures are kept
// in bin/test.
func TestPage(t *testing.T) {
	c := startCluster(t, plane.Options{})
	c.controller.Stop(t)
	address := node.FreeAddress(t)
	metrics := node.FreeAddress(t)
	c.start(t, "page", "ballast-fleet", "", "controller", "--page="+address, "--metrics="+metrics)
	c.set(t, "chat", v1alpha1.ModelSetSpec{Models: []string{"registry.ollama.ai/library/llama3.2:1b"}, Deadline: &metav1.Time{Time: time.Now().Add(time.Hour)}})
	c.set(t, "search", v1alpha1.ModelSetSpec{Models: []string{"ghcr.io/team/embedder:v3", "ghcr.io/team/ranker:v1"}})
	for _, n := range []int{3, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c.fill(t, n)
			eventually(t, "page with all nodes", func() error {
				shot, err := screenshot(t, "http://"+address, fmt.Sprintf("page-%d.png", n))
				if err != nil {
					return err
				}
				// Each node is a square in three rows, and all but a few are ready.
				green, red := count(shot, isGreen), count(shot, isRed)
				side := map[int]int{3: 16, 1000: 7}[n]
				if want := n * 2 * side * side; green < want || n > 3 && red < n/100*side {
					return fmt.Errorf("%d green and %d red points, want %d", green, red, want)
				}
				return nil
			})
		})
	}
	recorded(t, metrics, "controller.prom", `ballast_fleet_set_nodes{set="chat",state="desired"} 1000`)
}

var update = flag.Bool("update", false, "record the metrics that the tests of test/chart/monitoring evaluate")

// recorded waits until a program has a metric, and wants the metrics that test/chart/monitoring has recorded of it to
// be what it has.
func recorded(t *testing.T, address, file, want string) {
	t.Helper()
	var text string
	eventually(t, want, func() error {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		p, err := io.ReadAll(resp.Body)
		if text = strings.Join(metric.FindAllString(string(p), -1), ""); !strings.Contains(text, want+"\n") {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	})
	file = filepath.Join("../chart/monitoring/testdata", file)
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range metric.FindAllString(string(p), -1) {
		if name, _, _ := strings.Cut(line, "{"); !strings.Contains(text, name+"{") {
			t.Errorf("%s has %s, which is not a metric; -update records them again", file, name)
		}
	}
}

// metric is a line with a metric of ours.
var metric = regexp.MustCompile(`(?m)^ballast_.*\n`)

// fill adds nodes up to n as kubelets would, with states as agents would write them: most have all models.
func (c *cluster) fill(t *testing.T, n int) {
	t.Helper()
	have := &core.NodeList{}
	if err := c.admin.List(t.Context(), have); err != nil {
		t.Fatal(err)
	}
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(8)
	for i := len(have.Items); i < n; i++ {
		g.Go(func() error {
			if err := c.addNode(ctx, i); err != nil {
				return err
			}
			m := &v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}}
			err := c.admin.Create(ctx, m)
			if apierrors.IsAlreadyExists(err) {
				err = c.admin.Get(ctx, client.ObjectKeyFromObject(m), m)
			}
			if err != nil {
				return err
			}
			m.Status = stateOf(i)
			return c.admin.Status().Update(ctx, m)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// addNode adds the node with a number, as a kubelet would.
func (c *cluster) addNode(ctx context.Context, i int) error {
	err := c.admin.Create(ctx, &core.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{"kubernetes.io/os": "linux"}}})
	return client.IgnoreAlreadyExists(err)
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

// stateOf is the state of the node with a number.
func stateOf(i int) v1alpha1.ModelNodeStatus {
	s := v1alpha1.ModelNodeStatus{
		Disk:     &v1alpha1.DiskState{Models: 24e9, Saved: 6e9, Free: 400e9},
		Received: &v1alpha1.ReceivedState{Registries: 3e9, Mirrors: []v1alpha1.MirrorState{{Address: "http://127.0.0.1:4001", Bytes: 21e9}}},
	}
	for k, ref := range []string{"ghcr.io/team/embedder:v3", "ghcr.io/team/ranker:v1", "registry.ollama.ai/library/llama3.2:1b"} {
		m := v1alpha1.ModelState{Ref: ref, Phase: v1alpha1.PhaseReady, Total: 8e9, Completed: 8e9, Since: metav1.Now()}
		switch x := (i*7 + k*5) % 31; {
		case x < 4-k:
			m.Phase, m.Completed, m.Rate = v1alpha1.PhaseDownloading, int64(x+1)*2e9, 90e6
		case x == 30 && k < 2:
			m.Phase, m.Completed, m.Error = v1alpha1.PhaseFailed, 0, "ghcr.io answers 403 Forbidden: the pull secret models is not valid there"
		case x == 29:
			m.Phase, m.Completed = v1alpha1.PhasePending, 0
		default:
			s.Ready++
		}
		s.List = append(s.List, m)
	}
	s.Desired = int32(len(s.List))
	return s
}

// screenshot returns what a browser shows of an address, and writes it to a file in bin/test.
func screenshot(t *testing.T, address, name string) (image.Image, error) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../bin/test", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	out := node.Command(t.Context(), nil, "/usr/bin/chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir="+t.TempDir(),
		"--window-size=1200,1000", "--screenshot="+path, address)
	if out.Err != nil {
		return nil, fmt.Errorf("chromium: %w\n%s", out.Err, out.Output())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("chromium: %w\n%s", err, out.Output())
	}
	defer f.Close()
	return png.Decode(f)
}

// count counts the points of a picture that are of a kind.
func count(i image.Image, is func(color.NRGBA) bool) (n int) {
	for y := i.Bounds().Min.Y; y < i.Bounds().Max.Y; y++ {
		for x := i.Bounds().Min.X; x < i.Bounds().Max.X; x++ {
			if is(color.NRGBAModel.Convert(i.At(x, y)).(color.NRGBA)) {
				n++
			}
		}
	}
	return n
}

// The colours of the page.
func isGreen(c color.NRGBA) bool { return c == color.NRGBA{0x2f, 0x8f, 0x5b, 0xff} }
func isRed(c color.NRGBA) bool   { return c == color.NRGBA{0xc4, 0x31, 0x3c, 0xff} }
