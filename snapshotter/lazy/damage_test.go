package lazy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Each file of the state is damaged in each way while the daemon is dead and its mount is kept. The
// next daemon serves: a newly opened file has its bytes, an open one has its bytes or an error if the
// mount was replaced, and never other bytes.
func TestDamagedState(t *testing.T) {
	const size = 4 << 20
	flip := func(p []byte) []byte {
		p = bytes.Clone(p)
		for i := 20; i < len(p); i += 7 {
			p[i] ^= 0x40
		}
		return p
	}
	for _, name := range []string{recordFile, nodesFile, handlesFile} {
		for what, damage := range map[string]func(now, older []byte) []byte{
			"deleted":   nil,
			"empty":     func(_, _ []byte) []byte { return nil },
			"truncated": func(now, _ []byte) []byte { return now[:len(now)/2] },
			"flipped":   func(now, _ []byte) []byte { return flip(now) },
			"older":     func(_, older []byte) []byte { return older },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				p := newPlace(t)
				a, b := p.add(t, 1, size, size), p.add(t, 2, size, size)
				path := filepath.Join(p.dir, "lazy.state", name)
				d := startDaemon(t, p.args()...)
				older, err := os.ReadFile(path) // from before a file was opened
				if err != nil {
					t.Fatal(err)
				}
				f := open(t, p.path(a))
				if err := readAt(f, 1, 0, 1<<20); err != nil {
					t.Fatal(err)
				}
				d.kill()
				now, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if damage == nil {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, damage(now, older), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				d = startDaemon(t, p.args()...)
				if err := readOnce(p.path(b), 2, false); err != nil {
					t.Errorf("a file opened anew: %v\n%s", err, d.log)
				}
				if err := readOnce(p.path(a), 1, false); err != nil {
					t.Errorf("the file that was open, opened anew: %v\n%s", err, d.log)
				}
				err = readAt(f, 1, 2<<20, 1<<20)
				var errno unix.Errno
				if err != nil && !errors.As(err, &errno) {
					t.Errorf("the open file: %v", err)
				}
				t.Logf("takeovers %d; the open file: %v", d.stats().Takeovers, err)
				f.Close()
				d.tell("unmount")
			})
		}
	}
}
