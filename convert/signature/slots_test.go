package signature

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// taking returns a function that takes slots for checks of up to a minute.
func taking(t *testing.T, s *slots) func(host string) (*slot, error) {
	return func(host string) (*slot, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		return s.take(ctx, host)
	}
}

// TestSlots limits the checks of a host, of all hosts, and of those that have some already.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slots
		take := taking(t, &s)
		some := func(hosts ...string) {
			t.Helper()
			for _, host := range hosts {
				s.answered(host, true)
				if _, err := take(host); err != nil {
					t.Fatalf("%s: %v", host, err)
				}
			}
		}
		some("slow", "slow")
		if _, err := take("slow"); !errdefs.IsUnavailable(err) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third of one host, although others are free: %v", err)
		}
		some("other")
		if _, err := take("other"); !errdefs.IsUnavailable(err) {
			t.Errorf("a second one, although only those are free that are for hosts without: %v", err)
		}
		some("third", "fourth", "fifth")
		if _, err := take("sixth"); !errdefs.IsUnavailable(err) {
			t.Errorf("a seventh of all: %v", err)
		}
		got := make(chan *slot)
		go func() {
			sl, err := take("slow")
			if err != nil {
				t.Errorf("when enough have ended: %v", err)
			}
			got <- sl
		}()
		for len(s.running) > 2 {
			synctest.Wait()
			s.running[0].done()
			synctest.Wait()
		}
		(<-got).done()
		for len(s.running) > 0 {
			s.running[0].done()
		}
	})
}

// TestSlotsOfStrangers: hosts that have not answered leave room for those that have, and lose a check that takes long
// to any host that has none.
func TestSlotsOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slots
		take := taking(t, &s)
		var hung []*slot
		for i := range maxStrangers {
			sl, err := take(fmt.Sprint("hung", i))
			if err != nil {
				t.Fatal(err)
			}
			hung = append(hung, sl)
			go func() {
				<-sl.ctx.Done()
				sl.done()
			}()
			time.Sleep(time.Second)
		}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, err := s.take(ctx, "another"); err == nil {
			t.Error("hosts that did not answer have all checks")
		}
		cancel()
		s.answered("good", true)
		good, err := take("good")
		if err != nil || time.Since(start) != time.Second {
			t.Errorf("a host that has answered gets a check after %v, %v", time.Since(start), err)
		}
		for _, host := range []string{"hung1", "good"} { // who has one waits for it
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if _, err := s.take(ctx, host); err == nil {
				t.Errorf("a second check of %s", host)
			}
			cancel()
		}
		fresh, err := take("new")
		if err != nil || time.Since(start) != patience-maxStrangers*time.Second {
			t.Errorf("a host that was never asked gets a check after %v, %v", time.Since(start), err)
		}
		for i, sl := range append(hung, good, fresh) {
			if ended := context.Cause(sl.ctx) == errPatience; ended != (i == 0) {
				t.Errorf("check %d of %s: ended is %v", i, sl.host, ended)
			}
		}
		s.answered("good", false)
		if len(s.known) > 0 {
			t.Errorf("known: %v", s.known)
		}
		for _, sl := range append(hung, good, fresh) {
			sl.end(nil)
		}
	})
}

// TestKnownHosts: names of hosts do not fill the memory.
func TestKnownHosts(t *testing.T) {
	var s slots
	for i := range 2 * maxKnown {
		s.answered(fmt.Sprint(i), true)
	}
	if len(s.known) > maxKnown {
		t.Errorf("%d are known", len(s.known))
	}
}
