package convert

import (
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// Parallel calls f with 0 to n-1, at most limit at a time and in this order. After an error, f is
// not called any more. Of several errors it returns that of the lowest number, whichever came first.
func Parallel(n, limit int, f func(int) error) error {
	errs := make([]error, n)
	var failed atomic.Bool
	var g errgroup.Group
	g.SetLimit(limit)
	for i := 0; i < n && !failed.Load(); i++ {
		g.Go(func() error {
			if errs[i] = f(i); errs[i] != nil {
				failed.Store(true)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
