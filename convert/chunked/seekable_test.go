package chunked_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// seekable returns a file of two frames, with its seek table.
func seekable(t testing.TB) ([]byte, []chunked.Frame) {
	t.Helper()
	var b []byte
	var frames []chunked.Frame
	for _, p := range [][]byte{content(10 << 10), random(3000)} {
		c := converttest.Compress(p, filetable.CodecZstd)
		b = append(b, c...)
		frames = append(frames, chunked.Frame{Size: int64(len(c)), Plain: int64(len(p))})
	}
	b, err := chunked.AppendSeekTable(b, frames)
	if err != nil {
		t.Fatal(err)
	}
	return b, frames
}

func TestSeekTable(t *testing.T) {
	b, want := seekable(t)
	got, err := chunked.ReadSeekTable(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("frames (-want +got):\n%s", d)
	}
	if plain := inflate(t, b, filetable.CodecZstd); len(plain) != 10<<10+3000 {
		t.Errorf("uncompressed: got %d bytes", len(plain))
	}
	if _, err := chunked.ReadSeekTable(failing{}, 1000); !errors.Is(err, errUnplugged) {
		t.Errorf("got %v, want the error of the server", err)
	}
}

// TestSeekTableWithChecksums reads entries of 12 bytes.
func TestSeekTableWithChecksums(t *testing.T) {
	b := []byte("12345")
	b = append(b, 0x5e, 0x2a, 0x4d, 0x18, 21, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4, 1, 0, 0, 0, 0x80, 0xb1, 0xea, 0x92, 0x8f)
	got, err := chunked.ReadSeekTable(bytes.NewReader(b), int64(len(b)))
	if d := cmp.Diff([]chunked.Frame{{Size: 5, Plain: 9}}, got); d != "" || err != nil {
		t.Errorf("frames (-want +got):\n%s%v", d, err)
	}
}

func TestHostileSeekTables(t *testing.T) {
	good, _ := seekable(t)
	change := func(fromEnd int, b byte) []byte {
		p := bytes.Clone(good)
		p[len(p)-fromEnd] = b
		return p
	}
	for name, p := range map[string][]byte{
		"empty":           nil,
		"short":           good[len(good)-16:],
		"no magic":        change(1, 0),
		"reserved bits":   change(5, 4),
		"more frames":     change(9, 3),
		"fewer frames":    change(9, 1),
		"4 billion":       change(6, 0xff),
		"checksums":       change(5, 0x80),
		"frame too long":  change(17, 1),
		"no frame":        change(9+16+8, 0),
		"length is wrong": change(9+16+4, 0),
	} {
		if name == "frame too long" { // the compressed size of the second frame
			p = change(9+8-2, 1)
		}
		if _, err := chunked.ReadSeekTable(bytes.NewReader(p), int64(len(p))); !isOpaque(err) {
			t.Errorf("%s: got %v, want ErrOpaque", name, err)
		}
	}
	if _, err := chunked.AppendSeekTable(nil, []chunked.Frame{{Size: math.MaxUint32 + 1}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a frame of 4 GiB: got %v", err)
	}
}

func FuzzSeekTable(f *testing.F) {
	good, _ := seekable(f)
	f.Add(good)
	f.Add(good[len(good)-33:])
	f.Add(binary.LittleEndian.AppendUint32([]byte{0xff, 0xff, 0xff, 0xff, 0x80}, 0x8F92EAB1))
	f.Fuzz(func(t *testing.T, p []byte) {
		frames, err := chunked.ReadSeekTable(bytes.NewReader(p), int64(len(p)))
		if err != nil {
			if !isOpaque(err) {
				t.Fatal(err)
			}
			return
		}
		var sum int64
		for _, fr := range frames {
			sum += fr.Size
		}
		if sum > int64(len(p)) {
			t.Errorf("frames of %d bytes in %d", sum, len(p))
		}
	})
}
