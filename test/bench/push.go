package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// convert measures `ballast convert` between registries, compared with a program that reads, hashes and
// sends the same bytes once.
func (b *bench) convert() {
	m := b.model()
	dir := filepath.Join(b.node.Dir, "target")
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.t.Fatalf("%v", err)
	}
	to := node.StartRegistry(b.t, dir)
	src := b.node.Registry.Ref("bench/model", "v1")
	var control, plain, chunks series
	var peak int64
	for i := range b.rounds {
		b.settle(m.size, m.digest)
		control.add(b.task("send", b.node.Registry.BlobURL(m.repository, m.digest),
			"http://"+to.Host, fmt.Sprintf("bench/sent%d@%s", i, m.digest)))
		for _, c := range []struct {
			as string
			to *series
		}{{"modelpack", &plain}, {"ballast", &chunks}} {
			b.settle(m.size, m.digest)
			dst := to.Ref(fmt.Sprintf("bench/%s%d", c.as, i), "v1")
			took, out := b.taskSays("convert", node.Binary(b.t, "ballast"), b.node.ConfigFile(), src, dst, c.as)
			kilobytes, err := strconv.ParseInt(out, 10, 64)
			if err != nil {
				b.t.Fatalf("convert: %v", err)
			}
			c.to.add(took.wall)
			peak = max(peak, kilobytes<<10)
		}
	}
	b.times("convert, as modelpack", plain, "read, hash, send", control, target{})
	b.times("convert, with digests of chunks", chunks, "read, hash, send", control, atMost(1.15, ""))
	b.figure("convert memory, peak", float64(peak)/(1<<20), "%.0f MiB", "", atMost(40, " MiB"))
}

// convertModel runs `ballast convert` and prints its peak resident size in KiB.
func convertModel(ballast, config, src, dst, as string) error {
	cmd := exec.Command(ballast, "convert", "--config", config, "--as", as, "-q", src, dst)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	fmt.Println(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
	return nil
}

// sendBlob sends one stream from a URL to a registry, hashed once. To is "repository@digest".
func sendBlob(from, registry, to string) error {
	repository, d, ok := strings.Cut(to, "@")
	if !ok {
		return fmt.Errorf("no digest in %q", to)
	}
	in, err := http.Get(from)
	if err != nil {
		return err
	}
	defer in.Body.Close()
	if in.StatusCode != http.StatusOK {
		return fmt.Errorf("GET blob: %s", in.Status)
	}
	resp, err := http.Post(registry+"/v2/"+repository+"/blobs/uploads/", "", nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	at, err := url.Parse(resp.Header.Get("Location"))
	if err != nil {
		return err
	}
	q := at.Query()
	q.Set("digest", d)
	at.RawQuery = q.Encode()
	base, err := url.Parse(registry)
	if err != nil {
		return err
	}
	h := sha256.New()
	ahead := newPipe(io.TeeReader(in.Body, h))
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, base.ResolveReference(at).String(), ahead)
	if err != nil {
		return err
	}
	req.ContentLength = in.ContentLength
	req.Header.Set("Content-Type", "application/octet-stream")
	if resp, err = http.DefaultClient.Do(req); err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("PUT blob: %s", resp.Status)
	}
	if digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(h.Sum(nil))).String() != d {
		return errors.New("other bytes")
	}
	return nil
}

// A pipe reads and hashes in one goroutine what another one sends, with four buffers of a MiB.
type pipe struct {
	full, free chan []byte
	err        error // valid after full is closed
	cur, rest  []byte
}

func newPipe(r io.Reader) *pipe {
	p := &pipe{full: make(chan []byte, 4), free: make(chan []byte, 4)}
	for range cap(p.free) {
		p.free <- make([]byte, 1<<20)
	}
	go func() {
		defer close(p.full)
		for buf := range p.free {
			n, err := io.ReadFull(r, buf)
			p.full <- buf[:n]
			if err != nil {
				if p.err = err; err == io.ErrUnexpectedEOF {
					p.err = io.EOF
				}
				return
			}
		}
	}()
	return p
}

func (p *pipe) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.cur != nil {
			p.free <- p.cur[:cap(p.cur)]
		}
		var ok bool
		if p.cur, ok = <-p.full; !ok {
			return 0, p.err
		}
		p.rest = p.cur
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}
