package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// series are the times of one thing.
type series []time.Duration

func (s *series) add(d time.Duration) { *s = append(*s, d) }

func (s series) median() time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[len(sorted)/2]
}

func (b *bench) add(what string, s series, control string, c series, target string) {
	b.rows = append(b.rows, row{what, seconds(s.median()), control + " " + seconds(c.median()),
		fmt.Sprintf("%.2f", s.median().Seconds()/c.median().Seconds()), target})
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%s model, %d runs each, medians, load %s before and %s after\n", sizeOf(b.size), b.rounds, b.load, load())
	fmt.Fprintln(w, "WHAT\tBALLAST\tBESIDE IT\tRATIO\tTARGET")
	for _, r := range b.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.what, r.value, r.control, r.ratio, r.target)
	}
	w.Flush()
}

// load returns the load of the machine over the last minute.
func load() string {
	p, _ := os.ReadFile("/proc/loadavg") // nothing but the heading depends on it
	first, _, _ := strings.Cut(string(p), " ")
	return first
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func rate(n int64, d time.Duration) string {
	return fmt.Sprintf("%.2f GB/s", float64(n)/d.Seconds()/1e9)
}

func sizeOf(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.3g GiB", float64(n)/(1<<30))
	}
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

func (b *bench) must(r node.Result) {
	if r.Err != nil {
		b.t.Fatalf("%v\n%s\nballastd:\n%s", r.Err, r.Output(), b.node.Ballastd.Tail(20))
	}
}

// task runs a task in a process of its own and returns the time that it measured.
func (b *bench) task(name string, args ...string) time.Duration {
	d, _ := b.taskSays(name, args...)
	return d
}

// taskSays is task with what the task printed before its time.
func (b *bench) taskSays(name string, args ...string) (time.Duration, string) {
	cmd := exec.Command("/proc/self/exe", append([]string{"-task", name}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	said := strings.TrimSpace(string(out))
	last := said[strings.LastIndexByte(said, '\n')+1:]
	d, err := time.ParseDuration(last)
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	return d, strings.TrimSpace(strings.TrimSuffix(said, last))
}

func runTask(name string, args []string) error {
	tasks := map[string]struct {
		args int
		run  func([]string) error
	}{
		"limit":    {3, func(a []string) error { return limit(a[0], a[1], a[2]) }},
		"read":     {1, func(a []string) error { return readFile(a[0]) }},
		"mmap":     {1, func(a []string) error { return mmapFile(a[0]) }},
		"copy":     {2, func(a []string) error { return copyFile(a[0], a[1]) }},
		"touch":    {1, func(a []string) error { return touchMemory(a[0]) }},
		"send":     {3, func(a []string) error { return sendBlob(a[0], a[1], a[2]) }},
		"download": {3, func(a []string) error { return download(a[0], a[1], a[2]) }},
		"head":     {2, func(a []string) error { return readHead(a[0], a[1]) }},
		"copyHead": {3, func(a []string) error { return copyHead(a[0], a[1], a[2]) }},
		"random":   {3, func(a []string) error { return random(a[0], a[1], a[2]) }},
		"readers":  {2, func(a []string) error { return readAll(a[0], a[1]) }},
		"grow":     {3, func(a []string) error { return growStore(a[0], a[1], a[2]) }},
		"store":    {2, func(a []string) error { return measureStore(a[0], a[1]) }},
		"convert":  {5, func(a []string) error { return convertModel(a[0], a[1], a[2], a[3], a[4]) }},
	}
	task, ok := tasks[name]
	if !ok || len(args) != task.args {
		return fmt.Errorf("unknown task %q with %d arguments", name, len(args))
	}
	start := time.Now()
	if err := task.run(args); err != nil {
		return err
	}
	fmt.Println(time.Since(start))
	return nil
}

// limit is the plain way: 8 ranged streams into memory, hashed in order, written, fsynced.
func limit(url, length, dir string) error {
	const chunk, streams = 8 << 20, 8
	size, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "limit"))
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	client := newClient(streams)
	n := int((size + chunk - 1) / chunk)
	buffers := make(chan []byte, streams+4)
	for range cap(buffers) {
		buffers <- make([]byte, chunk)
	}
	ready := make([]chan []byte, n)
	for i := range ready {
		ready[i] = make(chan []byte, 1)
	}
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(streams + 1)
	g.Go(func() error {
		h := sha256.New()
		for _, c := range ready {
			select {
			case p := <-c:
				h.Write(p)
				buffers <- p[:chunk]
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for i := range n {
		p := <-buffers
		g.Go(func() error {
			off := int64(i) * chunk
			p := p[:min(chunk, size-off)]
			if err := getRange(client, url, p, off); err != nil {
				return err
			}
			if _, err := f.WriteAt(p, off); err != nil {
				return err
			}
			ready[i] <- p
			return nil
		})
	}
	return errors.Join(g.Wait(), f.Sync(), f.Close())
}

func getRange(client *http.Client, url string, p []byte, off int64) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	_, err = io.ReadFull(resp.Body, p)
	return err
}

func readFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	p := make([]byte, 1<<20)
	for {
		if _, err := f.Read(p); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func mmapFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	p, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	var sum byte
	for i := 0; i < len(p); i += os.Getpagesize() {
		sum += p[i]
	}
	fmt.Fprint(io.Discard, sum) // so that the loop is not dropped
	return unix.Munmap(p)
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Sync(), w.Close())
}

func touch(b *bench, n int64) { b.task("touch", fmt.Sprint(n)) }

func touchMemory(length string) error {
	n, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	p, err := unix.Mmap(-1, 0, int(min(n, 12<<30)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	return unix.Munmap(p)
}

func drop() {
	unix.Sync()
	_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

func sync(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd()))
}

// written returns the bytes that ballastd and containerd have written to disks.
func (b *bench) written() (n int64) {
	for _, p := range []*node.Process{b.node.Ballastd, b.node.Containerd} {
		n += b.field(fmt.Sprintf("/proc/%d/io", p.Pid()), "write_bytes:")
	}
	return n
}

// peak returns the largest resident size of ballastd so far, in bytes.
func (b *bench) peak() int64 {
	return b.field(fmt.Sprintf("/proc/%d/status", b.node.Ballastd.Pid()), "VmHWM:") << 10
}

func (b *bench) field(file, name string) int64 {
	p, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	for line := range strings.Lines(string(p)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				b.t.Fatalf("%s: %v", file, err)
			}
			return n
		}
	}
	b.t.Fatalf("%s: no %s", file, name)
	return 0
}
