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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sync/errgroup"
)

func (b *bench) must(r node.Result) {
	if r.Err != nil {
		b.t.Fatalf("%v\n%s\nballastd:\n%s", r.Err, r.Output(), b.node.Ballastd.Tail(20))
	}
}

// A cost is the time and CPU time of a task.
type cost struct{ wall, cpu time.Duration }

// task runs a task in another process and returns its time.
func (b *bench) task(name string, args ...string) time.Duration {
	c, _ := b.taskSays(name, args...)
	return c.wall
}

// taskSays is task that also returns the CPU-seconds of the process, and its output before the cost.
func (b *bench) taskSays(name string, args ...string) (cost, string) {
	cmd := taskCommand(name, args...)
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	c, said, err := parseCost(string(out))
	if err != nil {
		b.t.Fatalf("%s: %v", name, err)
	}
	return c, said
}

func taskCommand(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{"-task", name}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which prints what it has
	return cmd
}

// parseCost parses the last line of a task's output, and returns the output before it.
func parseCost(out string) (c cost, said string, err error) {
	out = strings.TrimSpace(out)
	last := out[strings.LastIndexByte(out, '\n')+1:]
	wall, cpu, _ := strings.Cut(last, " ")
	if c.wall, err = time.ParseDuration(wall); err == nil {
		c.cpu, err = time.ParseDuration(cpu)
	}
	return c, strings.TrimSpace(strings.TrimSuffix(out, last)), err
}

// runTask runs a task and prints its cost, without that of starting the program.
func runTask(name string, args []string) error {
	tasks := map[string]struct {
		args int
		run  func([]string) error
	}{
		"limit":       {3, func(a []string) error { return limit(a[0], a[1], a[2]) }},
		"ahead":       {1, func(a []string) error { return ahead(a[0]) }},
		"waitingdisk": {2, func(a []string) error { return serveWaitingDisk(a[0], a[1]) }},
		"load":        {2, func(a []string) error { return loadModel(a[0], a[1]) }},
		"copy":        {2, func(a []string) error { return copyFile(a[0], a[1]) }},
		"touch":       {1, func(a []string) error { return touchMemory(a[0]) }},
		"send":        {3, func(a []string) error { return sendBlob(a[0], a[1], a[2]) }},
		"each":        {2, func(a []string) error { return fetchEach(a[0], a[1]) }},
		"download":    {2, func(a []string) error { return download(a[0], a[1]) }},
		"deliver":     {4, func(a []string) error { return deliver(a[0], a[1], a[2], a[3]) }},
		"head":        {2, func(a []string) error { return readHead(a[0], a[1]) }},
		"copyHead":    {3, func(a []string) error { return copyHead(a[0], a[1], a[2]) }},
		"random":      {3, func(a []string) error { return random(a[0], a[1], a[2]) }},
		"order":       {2, func(a []string) error { return readOrdered(a[0], a[1]) }},
		"readers":     {2, func(a []string) error { return readAll(a[0], a[1]) }},
		"grow":        {3, func(a []string) error { return growStore(a[0], a[1], a[2]) }},
		"store":       {2, func(a []string) error { return measureStore(a[0], a[1]) }},
		"fleetnode":   {2, func(a []string) error { return runFleetNode(a[0], a[1]) }},
		"convert":     {5, func(a []string) error { return convertModel(a[0], a[1], a[2], a[3], a[4]) }},
	}
	task, ok := tasks[name]
	if !ok || len(args) != task.args {
		return fmt.Errorf("unknown task %q with %d arguments", name, len(args))
	}
	start, before := time.Now(), ownCPU()
	if err := task.run(args); err != nil {
		return err
	}
	fmt.Println(time.Since(start), ownCPU()-before)
	return nil
}

// limit is the plain transfer: 8 ranged streams into memory, hashed in order, written, fsynced.
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
