package chunkfile

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ballast-dev/ballast/store/transfer"
)

// TestReaderFollowsSequence: what comes next in a sequence is fetched before a reader that follows it needs it, and
// nothing that the sequence does not have. A reader that does not follow it makes it fetch nothing.
func TestReaderFollowsSequence(t *testing.T) { synctest.Test(t, testReaderFollowsSequence) }

func testReaderFollowsSequence(t *testing.T) {
	const size = 1000
	s, f, m := newFile(t, 200, size)
	var parts []Part
	for g := 198; g >= 0; g -= 2 { // backwards, every second group
		parts = append(parts, Part{f, g, s.Scheduler.NewFlow(transfer.Background)})
	}
	q := NewSequence(append(parts, parts[:7]...))
	q.Attach()
	read := func(g int) {
		t.Helper()
		if _, err := readAt(t.Context(), f, make([]byte, 10), int64(g*size)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // until what it made necessary is there
	}
	asked := func() (groups []int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for off := range m.asked {
			groups = append(groups, int(off)/(2*MaxGap))
		}
		slices.Sort(groups)
		return groups
	}
	var want []int
	check := func(when string, more ...int) {
		t.Helper()
		want = append(want, more...)
		slices.Sort(want)
		if got := asked(); !slices.Equal(got, want) {
			t.Errorf("%s: groups %v were asked for, want %v", when, got, want)
		}
	}
	read(198)
	check("a reader at the begin", 198, 196, 194, 192, 190, 188, 186, 184, 182, 180, 178, 176, 174)
	read(196)
	check("its second read", 172)
	read(100)
	read(20)
	check("reads that follow nothing", 100, 20)
	read(98)
	check("one that follows", 98, 96, 94)
	read(96)
	check("the next", 92, 90, 88)
	read(61)
	check("a read of what the sequence does not have", 61)
	q.Detach()
	read(94)
	check("not attached any more")
}

// TestReaderInAnotherOrder: a reader that does not follow the sequence, but the file, is read ahead for as without one.
func TestReaderInAnotherOrder(t *testing.T) { synctest.Test(t, testReaderInAnotherOrder) }

func testReaderInAnotherOrder(t *testing.T) {
	const size = 1000
	s, f, m := newFile(t, 200, size)
	var parts []Part
	for i := range 200 {
		parts = append(parts, Part{f, i * 37 % 200, s.Scheduler.NewFlow(transfer.Background)})
	}
	NewSequence(parts).Attach()
	for g := 50; g < 53; g++ {
		if _, err := readAt(t.Context(), f, make([]byte, 10), int64(g*size)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	}
	for g := 50; g <= 56; g++ {
		if m.asked[int64(g*2*MaxGap)] != 1 {
			t.Errorf("group %d was asked for %d times", g, m.asked[int64(g*2*MaxGap)])
		}
	}
	if len(m.asked) != 7 {
		t.Errorf("%d groups were asked for, want 7", len(m.asked))
	}
}

// TestSequenceFills: a sequence is fetched in its order, without what is present.
func TestSequenceFills(t *testing.T) {
	const size = 1000
	s, f, m := newFile(t, 40, size)
	if _, err := readAt(t.Context(), f, make([]byte, 10), 30*size); err != nil {
		t.Fatal(err)
	}
	want := []int64{30}
	var parts []Part
	for g := 39; g >= 0; g -= 3 {
		parts = append(parts, Part{f, g, s.Scheduler.NewFlow(transfer.Background)})
		if g != 30 {
			want = append(want, int64(g))
		}
	}
	// With one buffer left, each request waits for the one before.
	other := s.Scheduler.Buffers.Try(t.Context(), s.Scheduler.NewFlow(transfer.Background), "other")
	defer other.Release()
	if err := NewSequence(parts).Fill(t.Context(), f.Sources.FirstKey); err != nil {
		t.Fatal(err)
	}
	for i := range m.order {
		m.order[i] /= 2 * MaxGap
	}
	if !slices.Equal(m.order, want) {
		t.Errorf("groups %v were asked for, want %v", m.order, want)
	}
}

// TestSequenceOfMovedFile: a file that has become an object does not end the sequence, before or while a part of it
// gets its turn.
func TestSequenceOfMovedFile(t *testing.T) {
	s, moved, _ := newFile(t, 4, 1000)
	file, m := newBlob(4, 2000)
	f := acquire(s, file, m)
	var parts []Part
	for _, file := range []*File{moved, f} {
		for g := range 4 {
			parts = append(parts, Part{file, g, s.Scheduler.NewFlow(transfer.Background)})
		}
	}
	if err := moved.Move(); err != nil {
		t.Fatal(err)
	}
	if err := NewSequence(parts).Fill(t.Context(), f.Sources.FirstKey); err != nil || f.Present() != f.Size {
		t.Errorf("%d of %d bytes of the next file are there: %v", f.Present(), f.Size, err)
	}
	if err := moved.make(nil, 0); err != nil {
		t.Errorf("a part of an object: %v", err)
	}
}
