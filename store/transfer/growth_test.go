package transfer

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// crowd returns a Scheduler whose buffers are all held, and for which slots of others wait: those of ten
// sources, or each of another source.
func crowd(t testing.TB, waiting int, sources int, class Class) *Scheduler {
	s := NewScheduler(Options{Connections: 8, Chunk: 4096, Readers: 8, Unpackers: 2})
	for i := range s.Buffers.size {
		if _, err := s.Buffers.Acquire(t.Context(), s.NewFlow(Soon), fmt.Sprint("holder ", i%4)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range waiting {
		s.Buffers.ask(t.Context(), s.NewFlow(class), fmt.Sprint("other ", i%sources), true)
	}
	return s
}

// once acquires and releases a buffer of a reader.
func once(ctx context.Context, s *Scheduler, f *Flow) error {
	sl, err := s.Buffers.Acquire(ctx, f, "reader")
	if err == nil {
		sl.Release()
	}
	return err
}

// A slot costs the same however many slots of others wait, of few or of many sources. Without queues the
// factor is above 1000.
func TestGrowth(t *testing.T) {
	cost := func(waiting, sources int, class Class) time.Duration {
		s, best := crowd(t, waiting, sources, class), time.Hour
		f := s.NewFlow(Urgent)
		for range 200 {
			start := time.Now()
			if err := once(t.Context(), s, f); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	few := cost(10, 10, Soon)
	for _, class := range []Class{Soon, Background} {
		for _, sources := range []int{10, 10_000} {
			if many := cost(10_000, sources, class); many > 30*few {
				t.Errorf("10 slots wait: %v; 10000 of %d sources, class %d: %v", few, sources, class, many)
			}
		}
	}
}

func BenchmarkGrowth(b *testing.B) {
	for _, c := range []struct{ waiting, sources int }{{10, 10}, {10_000, 10}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("waiting=%d/sources=%d", c.waiting, c.sources), func(b *testing.B) {
			s := crowd(b, c.waiting, c.sources, Soon)
			f := s.NewFlow(Urgent)
			for b.Loop() {
				if err := once(b.Context(), s, f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
