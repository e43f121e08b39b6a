package chunked_test

import (
	"math"
	"testing"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestSeekTable(t *testing.T) {
	got, err := chunked.SeekTable([]chunked.Chunk{{Chunk: filetable.Chunk{Len: 5, Size: 9}}, {Chunk: filetable.Chunk{Len: 0x0201, Size: 0x01000000}}})
	want := "\x5e\x2a\x4d\x18" + "\x19\x00\x00\x00" +
		"\x05\x00\x00\x00" + "\x09\x00\x00\x00" + "\x01\x02\x00\x00" + "\x00\x00\x00\x01" +
		"\x02\x00\x00\x00" + "\x00" + "\xb1\xea\x92\x8f"
	if diff := cmp.Diff(want, string(got)); diff != "" || err != nil {
		t.Errorf("table (-want +got):\n%s%v", diff, err)
	}
	if _, err := chunked.SeekTable([]chunked.Chunk{{Chunk: filetable.Chunk{Len: math.MaxUint32 + 1}}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a frame of 4 GiB: got %v", err)
	}
}
