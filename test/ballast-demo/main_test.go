package main

import (
	"os/exec"
	"testing"

	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/google/go-cmp/cmp"
)

// TestWeights reads the header of the weights.
func TestWeights(t *testing.T) {
	p := weights(8 << 20)
	sniffer := gguf.NewSniffer(gguf.Options{Size: int64(len(p))})
	if _, err := sniffer.Write(p); err != nil {
		t.Fatal(err)
	}
	h, err := sniffer.Header()
	if err != nil || h.Name != "Demo" || len(p) < 8<<20 {
		t.Errorf("got %+v, %v, %d bytes", h, err, len(p))
	}
}

// TestQuote compares with the result of a shell.
func TestQuote(t *testing.T) {
	for _, s := range []string{"", "a/b:c", "it's", `$B "x" \( `, "a\nb"} {
		out, err := exec.Command("sh", "-c", "printf %s "+quote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("quote(%q) = %s, read as %q, %v", s, quote(s), out, err)
		}
	}
}

func TestLeftMounts(t *testing.T) {
	const info = `22 1 0:20 / /proc rw shared:5 - proc proc rw
30 1 0:30 / /tmp/b1/mnt ro - overlay overlay ro,lowerdir=/tmp/b1/ballast/objects
31 1 0:31 / /mnt/my\040models ro - overlay overlay ro,lowerdir=/tmp/b1/ballast/objects
32 1 0:32 / /tmp/b1/state/io.containerd.runtime.v2.task/default/x/rootfs rw - overlay overlay rw,lowerdir=/tmp/b1/ballast/objects
33 1 0:33 / /tmp/b10/mnt ro - overlay overlay ro,lowerdir=/tmp/b10/ballast/objects
36 1 0:36 /b1/ballast/snapshots/3/fs /mnt/bound ro - ext4 /dev/sda ro
34 30 0:34 / /tmp/b1/mnt/sub rw - tmpfs tmpfs rw
35 1 0:35 / /tmp/b1/state/io.containerd.mount-manager.v1.bolt/t/2/1 ro - overlay overlay ro,lowerdir=/tmp/b1/ballast/objects
`
	if d := cmp.Diff(leftMounts(info, "/tmp/b1"), []string{"/tmp/b1/mnt", "/mnt/my models", "/mnt/bound", "/tmp/b1/mnt/sub", "/tmp/b1/state/io.containerd.mount-manager.v1.bolt/t/2/1"}); d != "" {
		t.Errorf("mounts (got, want):\n%s", d)
	}
}
