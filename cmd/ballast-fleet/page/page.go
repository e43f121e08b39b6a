package page

import (
	"cmp"
	_ "embed"
	"html/template"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/labels"
)

// A Cluster is what the page shows.
type Cluster struct {
	Sets   []v1alpha1.ModelSet  // by name
	Nodes  []plan.Node          // by name
	States []v1alpha1.ModelNode // the states of the nodes
}

// Refresh is how often a browser loads the page again.
const Refresh = 10 * time.Second

//go:embed page.html
var source string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"size": func(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }, "percent": percent}).Parse(source))

// write writes a page, from 1, or the last one if there are fewer.
func write(w io.Writer, c Cluster, number int, now time.Time) error {
	v := viewOf(c, number, now)
	if v.Pages < number {
		v = viewOf(c, v.Pages, now)
	}
	return page.Execute(w, v)
}

// Handler returns a handler that shows what look returns. Local says that only this machine reaches it: then it
// answers only requests for an address of loopback, because a web site can give its own name that address.
func Handler(look func(*http.Request) (Cluster, error), local bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		if local && !loopback(r.Host) {
			http.Error(w, "use http://127.0.0.1 or http://localhost", http.StatusForbidden)
			return
		}
		c, err := look(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		number, _ := strconv.Atoi(r.FormValue("page"))
		_ = write(w, c, max(number, 1), time.Now()) // the client has gone
	})
	return mux
}

// loopback reports whether the host of a request is this machine.
func loopback(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// A view is the data of the template.
type view struct {
	Now     string
	Refresh int // seconds
	Nodes   int
	Silent  int   // nodes without a state
	Sets    []set // of this page
	Stuck   []trouble
	More    int // troubles that are not in Stuck
	Disk    v1alpha1.DiskState
	Sources []bytesFrom // most bytes first
	// MoreSources is the number of those that are not in Sources.
	MoreSources int

	Page, Pages, Before, Next int
	Index                     []entry
	MoreSets                  int // that are not in Index
}

// An entry is a set in the index of pages.
type entry struct {
	Name           string
	Page           int // the first with it
	Ready, Desired int32
}

// A pager divides rows into pages of at most pageBytes. It does not look at states, so that a row stays on its page.
type pager struct{ page, bytes int }

// put returns the page of the next row.
func (p *pager) put(bytes int) int {
	if p.bytes += bytes; p.page == 0 || p.bytes > pageBytes {
		p.page, p.bytes = p.page+1, bytes
	}
	return p.page
}

// A set is one ModelSet.
type set struct {
	Name     string
	Tally    plan.Tally
	Deadline string
	Models   []row
}

// A row is a model of a set on its nodes.
type row struct {
	Ref     string
	Counts  []count
	Rate    int64
	Picture picture
}

// A count is the number of nodes in a phase.
type count struct {
	Phase v1alpha1.Phase
	N     int
}

// bytesFrom are bytes that nodes have received from a registry or a mirror.
type bytesFrom struct {
	Name  string
	Bytes int64
	Share float64 // of all
	Wrong int64
}

// Limits of a page: its rows take pageBytes at most, or are one row. A row takes rowBytes besides its picture.
const (
	pageBytes   = 240 << 10 // 240 KiB
	rowBytes    = 700
	maxTroubles = 40
	maxSources  = 40
	maxIndex    = 500
)

func viewOf(c Cluster, number int, now time.Time) view {
	states := make(map[string][]v1alpha1.ModelState, len(c.States)) // by node
	v := view{Now: now.UTC().Format(time.DateTime), Refresh: int(Refresh.Seconds()), Nodes: len(c.Nodes), Page: number, Before: number - 1, Next: number + 1}
	from := map[string]*bytesFrom{}
	add := func(name string, bytes, wrong int64) {
		if from[name] == nil {
			from[name] = &bytesFrom{Name: name}
		}
		from[name].Bytes, from[name].Wrong = plan.Sum(from[name].Bytes, bytes), plan.Sum(from[name].Wrong, wrong)
	}
	for _, s := range c.States {
		states[s.Name] = s.Status.List
		if d := s.Status.Disk; d != nil {
			v.Disk.Models, v.Disk.Saved, v.Disk.Free = plan.Sum(v.Disk.Models, d.Models), plan.Sum(v.Disk.Saved, d.Saved), plan.Sum(v.Disk.Free, d.Free)
		}
		if r := s.Status.Received; r != nil {
			add("registries", r.Registries, 0)
			for _, m := range r.Mirrors {
				add(m.Address, m.Bytes, m.Wrong)
			}
		}
	}
	for _, n := range c.Nodes {
		if _, reported := states[n.Name]; !reported {
			v.Silent++
		}
	}
	stuck, rows := troubles{}, pager{}
	for i := range c.Sets {
		out, first := setOf(&c.Sets[i], c.Nodes, states, now, stuck, &rows, number)
		if len(out.Models) > 0 || first == number {
			v.Sets = append(v.Sets, out)
		}
		if len(v.Index) < maxIndex {
			v.Index = append(v.Index, entry{out.Name, first, out.Tally.Ready, out.Tally.Desired})
		}
	}
	v.Pages, v.MoreSets = max(rows.page, 1), len(c.Sets)-len(v.Index)
	v.Stuck, v.More = stuck.first(maxTroubles)
	total := int64(0)
	for _, b := range from {
		total = plan.Sum(total, b.Bytes)
		v.Sources = append(v.Sources, *b)
	}
	slices.SortFunc(v.Sources, func(a, b bytesFrom) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Name, b.Name))
	})
	for i := range v.Sources {
		v.Sources[i].Share = percent(v.Sources[i].Bytes, total)
	}
	v.MoreSources = max(0, len(v.Sources)-maxSources)
	v.Sources = v.Sources[:len(v.Sources)-v.MoreSources]
	return v
}

// setOf returns a set on the nodes that it selects, which are sorted, with the rows that are on a page, and the first
// page of its rows. It adds what is stuck.
func setOf(s *v1alpha1.ModelSet, nodes []plan.Node, states map[string][]v1alpha1.ModelState, now time.Time, stuck troubles, rows *pager, number int) (out set, first int) {
	out.Name = s.Name
	left := plan.Left(s, now)
	selector, _ := plan.Selector(&s.Spec)
	var selected []*plan.Node
	for i, n := range nodes {
		if selector.Matches(labels.Set(n.Labels)) {
			selected = append(selected, &nodes[i])
			out.Tally.Add(s, n, states[n.Name], left)
		}
	}
	if s.Spec.Deadline != nil {
		out.Deadline = s.Spec.Deadline.UTC().Format(time.DateTime)
	}
	picture := weight(selected)
	first = rows.put(rowBytes) // of the head
	for i := range s.Spec.Models {
		page := rows.put(rowBytes + picture)
		if i == 0 {
			first = page
		}
		if r := rowOf(s, i, selected, states, now, stuck, page == number); page == number {
			out.Models = append(out.Models, r)
		}
	}
	return out, first
}

// rowOf returns the row of a model, the i-th of a set, also with its picture.
func rowOf(s *v1alpha1.ModelSet, i int, nodes []*plan.Node, states map[string][]v1alpha1.ModelState, now time.Time, stuck troubles, drawn bool) row {
	ref := s.Spec.Models[i]
	out, counts := row{Ref: ref}, map[v1alpha1.Phase]int{}
	var squares []square
	at := 0
	for _, n := range nodes {
		list, reported := states[n.Name]
		m := plan.StateNear(list, ref, &at)
		m.Phase = cmp.Or(m.Phase, v1alpha1.PhasePending)
		counts[m.Phase]++
		out.Rate = plan.Sum(out.Rate, m.Rate)
		if drawn {
			squares = append(squares, square{n.Name, m.Phase, percent(m.Completed, m.Total)})
		}
		if plan.NotUpdated(s, i, m) {
			stuck.add(ref, "the current version cannot be downloaded: "+m.Error, n.Name)
		} else if why := whyStuck(m, n, reported, now); why != "" {
			stuck.add(ref, why, n.Name)
		}
	}
	for _, p := range v1alpha1.Phases {
		if counts[p] > 0 {
			out.Counts = append(out.Counts, count{p, counts[p]})
		}
	}
	out.Picture = draw(squares)
	return out
}

// percent returns the percentage of a part, which is 100 only for all.
func percent(part, all int64) float64 {
	if all <= 0 {
		return 0
	}
	return min(100, 100*float64(part)/float64(all))
}

// stuckAfter is how long a model may have no bytes or not be begun before it is called stuck.
const stuckAfter = 2 * time.Minute

// whyStuck returns why a model does not become ready on a node; empty if it does.
func whyStuck(m v1alpha1.ModelState, n *plan.Node, reported bool, now time.Time) string {
	age := now.Sub(m.Since.Time)
	switch {
	case m.Phase == v1alpha1.PhaseReady:
		return ""
	case n.Down:
		return "ballast does not run: the node is down or cannot be reached, or its pod of the DaemonSet is not ready"
	case m.Phase == v1alpha1.PhaseFailed:
		return cmp.Or(m.Error, "it failed")
	case n.Omitted && m.Since.IsZero():
		return plan.TooMany
	case !reported:
		return "the agent of the node has not written a ModelNode"
	case m.Phase == v1alpha1.PhaseDownloading && m.Rate == 0 && age > stuckAfter:
		return "no bytes arrive"
	case m.Phase == v1alpha1.PhasePending && !m.Since.IsZero() && age > stuckAfter:
		return "not begun: ballastd of the node is not ready, other models or nodes come first, or the set is paused"
	}
	return ""
}

// A trouble is a reason why nodes do not have a model.
type trouble struct {
	Ref, Why string
	Nodes    []string
	has      map[string]bool // the same nodes
}

// Names are the first nodes, and how many there are besides.
func (t trouble) Names() string { return plan.Names(t.Nodes) }

// troubles are reasons with the nodes that have them.
type troubles map[[2]string]*trouble

func (t troubles) add(ref, why, node string) {
	key := [2]string{ref, why}
	if t[key] == nil {
		t[key] = &trouble{Ref: ref, Why: why, has: map[string]bool{}}
	}
	if x := t[key]; !x.has[node] { // two sets can have a model
		x.Nodes, x.has[node] = append(x.Nodes, node), true
	}
}

// first returns the n troubles of most nodes, and how many there are besides.
func (t troubles) first(n int) ([]trouble, int) {
	all := make([]trouble, 0, len(t))
	for _, x := range t {
		all = append(all, *x)
	}
	slices.SortFunc(all, func(a, b trouble) int {
		return cmp.Or(cmp.Compare(len(b.Nodes), len(a.Nodes)), strings.Compare(a.Ref, b.Ref), strings.Compare(a.Why, b.Why))
	})
	return all[:min(n, len(all))], max(0, len(all)-n)
}
