package page

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"golang.org/x/net/html"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 12, 1, 7, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.Time{Time: now.Add(-d)} }

func setNamed(name string, models ...string) v1alpha1.ModelSet {
	return v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(time.Hour)}, Spec: v1alpha1.ModelSetSpec{Models: models}}
}

func stateOf(name string, list ...v1alpha1.ModelState) v1alpha1.ModelNode {
	return v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ModelNodeStatus{List: list}}
}

// text returns the first page, which must be HTML with balanced elements, as a reader sees it.
func text(t *testing.T, c Cluster) (page, seen string) {
	t.Helper()
	page = pageOf(t, c, 1)
	if _, err := html.Parse(strings.NewReader(page)); err != nil {
		t.Error(err)
	}
	_, body, _ := strings.Cut(page, "<body>")
	seen = html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " "))
	return page, strings.Join(strings.Fields(seen), " ")
}

func pageOf(t *testing.T, c Cluster, number int) string {
	t.Helper()
	var b strings.Builder
	if err := write(&b, c, number, now); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestPage shows each state of a model, what is stuck, the traffic and the disks. A node that no set selects is not
// in a row.
func TestPage(t *testing.T) {
	ready := v1alpha1.ModelState{Ref: "r/a:1", Phase: v1alpha1.PhaseReady, Total: 100, Completed: 100, Since: ago(time.Hour)}
	half := v1alpha1.ModelState{Ref: "r/a:1", Phase: v1alpha1.PhaseDownloading, Total: 100, Completed: 50, Rate: 1e6, Since: ago(time.Hour)}
	silent := v1alpha1.ModelState{Ref: "r/a:1", Phase: v1alpha1.PhaseDownloading, Total: 100, Completed: 10, Since: ago(time.Hour)}
	failed := v1alpha1.ModelState{Ref: "r/a:1", Phase: v1alpha1.PhaseFailed, Error: "<b>no such model</b>", Since: ago(time.Second)}
	pending := v1alpha1.ModelState{Ref: "r/a:1", Phase: v1alpha1.PhasePending, Since: ago(time.Hour)}
	gpu := map[string]string{"gpu": "true"}
	c := Cluster{Nodes: []plan.Node{{Name: "n0", Labels: gpu}, {Name: "n00", Labels: gpu, Down: true}, {Name: "n01", Labels: gpu, Omitted: true}}} // without a state
	for i, m := range []v1alpha1.ModelState{pending, failed, failed, silent, half, ready} {
		name := fmt.Sprintf("n%d", i+1)
		c.Nodes = append(c.Nodes, plan.Node{Name: name, Labels: gpu})
		c.States = append(c.States, stateOf(name, m))
	}
	c.Nodes = append(c.Nodes, plan.Node{Name: "n7"})
	c.States[0].Status.Disk = &v1alpha1.DiskState{Models: 3e9, Saved: 1e9, Free: 7e9}
	c.States[0].Status.Received = &v1alpha1.ReceivedState{Registries: 1e9, Mirrors: []v1alpha1.MirrorState{{Address: "http://mirror", Bytes: 3e9, Wrong: 2}}}
	s := setNamed("chat", "r/a:1")
	s.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: gpu}
	s.Spec.Deadline = &metav1.Time{Time: now.Add(time.Minute)}
	c.Sets = []v1alpha1.ModelSet{setNamed("a", "r/b:1"), setNamed("b"), s}
	page, seen := text(t, c)
	for _, want := range []string{
		"Models on 10 nodes", "4 nodes have not reported", "chat 1/9 nodes have all models 17 % · by 2026-12-01 07:01:00 UTC 1 nodes are down",
		"r/a:1 1 Ready 2 Downloading 4 Pending 2 Failed 1.0 MB/s", "n5: Downloading 50 % n6: Ready",
		"2 r/a:1 <b>no such model</b> n2, n3", "1 r/a:1 no bytes arrive n4", "1 r/a:1 the node has more than 512 models n01", "1 r/a:1 not begun: ballastd", "1 r/a:1 the agent of the node has not written a ModelNode n0", "1 r/a:1 ballast does not run: the node is down or cannot be reached, or its pod of the DaemonSet is not ready n00",
		"http://mirror 3.0 GB 75 % 2 wrong files or chunks registries 1.0 GB 25 %", "3.0 GB of models on all nodes. Sharing files between them saves 1.0 GB more; 7.0 GB are free.",
	} {
		if !strings.Contains(seen, want) {
			t.Errorf("%q is not on the page:\n%s", want, seen)
		}
	}
	if strings.Contains(page, "<b>no such") || strings.Contains(page, "<script") || strings.Count(page, "<section") != 3 {
		t.Errorf("errors are text, there are no scripts, and three sets:\n%s", page)
	}
	if _, seen := text(t, Cluster{}); !strings.Contains(seen, "There is no ModelSet") || !strings.Contains(seen, "not known yet") {
		t.Errorf("an empty cluster:\n%s", seen)
	}
}

// TestNotUpdated: a node that has a model is stuck if it cannot download the current version.
func TestNotUpdated(t *testing.T) {
	m := v1alpha1.ModelState{Ref: "r/a:1", Phase: v1alpha1.PhaseReady, Origin: "d1", Error: "the disk is full", Since: ago(time.Hour)}
	s := setNamed("chat", "r/a:1")
	for digest, want := range map[string]bool{"d1": false, "d2": true} {
		s.Status.Versions = []v1alpha1.ModelVersion{{Ref: "r/a:1", Digest: digest}}
		_, seen := text(t, Cluster{Nodes: []plan.Node{{Name: "n1"}}, States: []v1alpha1.ModelNode{stateOf("n1", m)}, Sets: []v1alpha1.ModelSet{s}})
		if got := strings.Contains(seen, "1 r/a:1 the current version cannot be downloaded: the disk is full n1"); got != want {
			t.Errorf("version %s: got %t, want %t:\n%s", digest, got, want, seen)
		}
	}
}

// TestLargePage: the pictures of many nodes have no texts, what is stuck has a limit, and the page stays small.
func TestLargePage(t *testing.T) {
	c := Large(1000)
	page, seen := text(t, c)
	if len(page) > 100<<10 || strings.Contains(page, "<title>node") || !strings.Contains(seen, "Models on 1000 nodes") {
		t.Errorf("%d bytes", len(page))
	}
	if !strings.Contains(seen, " more: kubectl get modelnodes") || strings.Count(page, "<tr>") > maxTroubles+10 {
		t.Errorf("what is stuck has no limit:\n%s", seen)
	}
	again, _ := text(t, c)
	if again != page {
		t.Error("two pages of one state differ")
	}
}

// TestPages: with many nodes and models, each row is on one page, and no page is large. A page that there is not is the
// last.
func TestPages(t *testing.T) {
	c := Huge()
	first := pageOf(t, c, 1)
	m := regexp.MustCompile(`page 1 of (\d+) `).FindStringSubmatch(first)
	if m == nil || strings.Count(first, `<a href="?page=`) != len(c.Sets)+1 {
		t.Fatalf("no other pages:\n%.3000s", first)
	}
	last, _ := strconv.Atoi(m[1])
	found, most := map[string]int{}, 0
	for i := 1; i <= last; i++ {
		page := pageOf(t, c, i)
		most = max(most, len(page))
		for _, row := range regexp.MustCompile(`<div class="model"><code>(.*)</code>`).FindAllStringSubmatch(page, -1) {
			found[row[1]]++
		}
		for _, s := range regexp.MustCompile(`<section class="set" id="set-(.*)">`).FindAllStringSubmatch(page, -1) {
			if link := fmt.Sprintf(`<a href="?page=%d#set-%s">`, i, s[1]); found[s[1]] == 0 && !strings.Contains(page, link) {
				t.Errorf("page %d: no link to %s", i, s[1])
			}
			found[s[1]]++
		}
	}
	t.Logf("%d pages of up to %d bytes", last, most)
	if most > 300e3 || last > 30 {
		t.Errorf("%d pages of up to %d bytes", last, most)
	}
	for _, s := range c.Sets {
		for _, ref := range s.Spec.Models {
			if found[ref] != 1 || found[s.Name] == 0 {
				t.Errorf("%s is on %d pages, %s on %d", ref, found[ref], s.Name, found[s.Name])
			}
		}
	}
	beyond := pageOf(t, c, last+1)
	if end := pageOf(t, c, last); beyond != end || strings.Contains(end, "next") || !strings.Contains(end, "before") {
		t.Error("a page after the last")
	}
}

// TestHandler answers at loopback only for its names, and says why it cannot.
func TestHandler(t *testing.T) {
	look := func(*http.Request) (Cluster, error) { return Large(3), nil }
	get := func(h http.Handler, host, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, tt := range []struct {
		host, path string
		local      bool
		code       int
	}{
		{"127.0.0.1:8080", "/", true, 200}, {"localhost:8080", "/", true, 200}, {"[::1]:8080", "/", true, 200}, {"localhost", "/", true, 200},
		{"evil.example:8080", "/", true, 403}, {"localhost.evil.example", "/", true, 403}, {"", "/", true, 403}, {"fleet.example", "/", false, 200},
		{"localhost", "/x", true, 404}, {"localhost", "/?page=2", true, 200}, {"localhost", "/?page=-1", true, 200}, {"localhost", "/?page=x", true, 200},
	} {
		if w := get(Handler(look, tt.local), tt.host, tt.path); w.Code != tt.code {
			t.Errorf("%+v: %d", tt, w.Code)
		} else if csp := w.Header().Get("Content-Security-Policy"); w.Code == 200 && !strings.HasPrefix(csp, "default-src 'none'") {
			t.Errorf("policy %q", csp)
		}
	}
	w := get(Handler(func(*http.Request) (Cluster, error) { return Cluster{}, errors.New("no cache") }, true), "localhost", "/")
	if w.Code != 503 || !strings.Contains(w.Body.String(), "no cache") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func BenchmarkPage(b *testing.B) {
	c := Huge()
	for b.Loop() {
		if err := write(&bytes.Buffer{}, c, 1, now); err != nil {
			b.Fatal(err)
		}
	}
}
