package ollama

import (
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// parallel calls f with 0 to n-1, at most limit at a time. Of several errors it returns that of the
// lowest number, in whatever order they occurred; after an error, f is not called with higher
// numbers any more.
func parallel(n, limit int, f func(int) error) error {
	errs := make([]error, n)
	var failed atomic.Int64 // the lowest number with an error
	failed.Store(int64(n))
	var g errgroup.Group
	g.SetLimit(limit)
	for i := range n {
		if int64(i) > failed.Load() {
			break
		}
		g.Go(func() error {
			if int64(i) > failed.Load() {
				return nil
			}
			if errs[i] = f(i); errs[i] == nil {
				return nil
			}
			for low := failed.Load(); int64(i) < low && !failed.CompareAndSwap(low, int64(i)); {
				low = failed.Load()
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	if low := failed.Load(); low < int64(n) {
		return errs[low]
	}
	return nil
}
