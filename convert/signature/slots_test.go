package signature

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// TestSlots limits a host that hangs to half of the checks, and the time that a check waits.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slots
		var end []func()
		take := func(host string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done, err := s.take(ctx, host)
			if err == nil {
				end = append(end, done)
			}
			return err
		}
		for _, host := range []string{"slow", "slow", "other", "third"} {
			if err := take(host); err != nil {
				t.Fatalf("%s: %v", host, err)
			}
		}
		if err := take("slow"); !errdefs.IsUnavailable(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third of one host: %v", err)
		}
		if err := take("fourth"); !errdefs.IsUnavailable(err) {
			t.Errorf("a fifth of all: %v", err)
		}
		var wait sync.WaitGroup
		wait.Go(func() {
			if err := take("slow"); err != nil {
				t.Errorf("when one has ended: %v", err)
			}
		})
		synctest.Wait()
		end[0]()
		wait.Wait()
		for _, f := range end[1:] {
			f()
		}
		if s.all != 0 || len(s.hosts) != 0 {
			t.Errorf("%d checks go on, of %v", s.all, s.hosts)
		}
	})
}
