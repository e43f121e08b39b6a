package transfer

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

// answers are the errors of requests, by source; the last one repeats.
type answers map[string][]error

// TestAttempts checks which sources are asked after failures, and which of their errors is returned.
func TestAttempts(t *testing.T) {
	gone, refused, down := errdefs.ErrNotFound, errdefs.ErrPermissionDenied, errdefs.ErrUnavailable
	four := Retry{Tries: 4, Pause: time.Second}
	missing := four
	missing.Final = errdefs.IsNotFound
	for name, tt := range map[string]struct {
		retry   Retry
		answers answers
		asked   string
		err     error
	}{
		"the first one answers":              {Once, answers{"mirror": {nil}, "origin": {down}}, "mirror", nil},
		"the next one answers":               {Once, answers{"mirror": {down}, "origin": {nil}}, "mirror origin", nil},
		"none answers, once":                 {Once, answers{"mirror": {down}, "origin": {gone}}, "mirror origin", gone},
		"a mirror alone":                     {Once, answers{"mirror": {down}}, "mirror", down},
		"no source":                          {four, nil, "", ErrNoSource},
		"it is there again":                  {four, answers{"origin": {down, down, nil}}, "origin origin origin", nil},
		"it stays away":                      {four, answers{"origin": {down}}, "origin origin origin origin", down},
		"final errors are final":             {four, answers{"mirror": {gone}, "origin": {down, nil}}, "mirror origin origin", nil},
		"all are final":                      {four, answers{"mirror": {gone}, "origin": {refused}}, "mirror origin", refused},
		"the origin does not have it":        {four, answers{"mirror": {down}, "origin": {gone}}, "mirror origin mirror mirror mirror", gone},
		"the origin has the last word":       {missing, answers{"mirror": {down}, "origin": {gone}}, "mirror origin", gone},
		"refused is more than missing":       {Once, answers{"origin": {refused}, "second": {gone}}, "origin second", refused},
		"down is more than refused":          {Once, answers{"origin": {refused}, "second": {down}}, "origin second", down},
		"no ranges at the origin":            {four, answers{"mirror": {down}, "origin": {ErrNoRanges}, "second": {nil}}, "mirror origin", ErrNoRanges},
		"no ranges at the mirror":            {four, answers{"mirror": {ErrNoRanges}, "origin": {nil}}, "mirror origin", nil},
		"canceled, but not by the one asked": {four, answers{"origin": {canceled{}, nil}}, "origin origin", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var list []Source
				for _, name := range []string{"mirror", "origin", "second"} {
					if tt.answers[name] != nil {
						list = append(list, Source{Name: name, Endpoint: &Endpoint{Name: name, Mirror: name == "mirror", Counts: &Counts{}}})
					}
				}
				var from Sources
				from.Set("a", list)
				var asked []string
				a := from.Attempts(tt.retry)
				for a.Next(t.Context()) {
					asked = append(asked, a.Name)
					err := tt.answers[a.Name][0]
					if len(tt.answers[a.Name]) > 1 {
						tt.answers[a.Name] = tt.answers[a.Name][1:]
					}
					if err != nil {
						err = fmt.Errorf("the %s: %w", a.Name, err)
					}
					a.Done(t.Context(), err)
				}
				if got := strings.Join(asked, " "); got != tt.asked {
					t.Errorf("asked %s, want %s", got, tt.asked)
				}
				if err := a.Err(); !errors.Is(err, tt.err) {
					t.Errorf("got %v, want %v", err, tt.err)
				} else if len(asked) > 1 && asked[0] == "mirror" && err != nil && tt.err != ErrNoRanges && !strings.Contains(err.Error(), "(others: the mirror") {
					t.Errorf("%v does not say what happened at the mirror", err)
				}
			})
		})
	}
}

// TestAttemptsAtARestingMirror checks that a mirror that another request finds out about is asked when all others have
// failed.
func TestAttemptsAtARestingMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, quick(), quick())
		m.endpoint.leave(time.Now(), failed, nil)
		time.Sleep(2 * time.Second)
		if !m.endpoint.enter(true) {
			t.Fatal("it rests")
		}
		var asked []string
		a := m.from.Attempts(Once)
		for a.Next(t.Context()) {
			asked = append(asked, a.Endpoint.Name)
			a.Done(t.Context(), errdefs.ErrUnavailable)
		}
		if got := strings.Join(asked, " "); got != "origin mirror" {
			t.Errorf("asked %s", got)
		}
	})
}

// TestAttemptsAtRestingMirrors checks that mirrors that all rest are asked when the origin has failed, without waiting
// for the end of the rests.
func TestAttemptsAtRestingMirrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list []Source
		for _, name := range []string{"first", "second", "third"} {
			e := &Endpoint{Name: name, Mirror: true, Counts: &Counts{}}
			for range 3 {
				e.leave(time.Now(), failed, nil)
			}
			list = append(list, Source{Name: "a/b", Endpoint: e})
		}
		list = append(list, Source{Name: "a/b", Endpoint: &Endpoint{Name: "origin"}})
		for _, tt := range []struct {
			list []Source
			want string
		}{
			{list, "origin first second third origin first second third"},
			{list[:2], "first second first second"},
		} {
			var asked []string
			start := time.Now()
			a := Ask(tt.list, Retry{Tries: 2, Pause: time.Second})
			for a.Next(t.Context()) {
				asked = append(asked, a.Endpoint.Name)
				a.Done(t.Context(), errdefs.ErrUnavailable)
			}
			if got := strings.Join(asked, " "); got != tt.want || time.Since(start) != time.Second {
				t.Errorf("asked %s in %v, want %s", got, time.Since(start), tt.want)
			}
		}
	})
}

// TestRetryAfterOfMirror checks that a mirror rests for as long as it asks for, if that is longer than other pauses, and
// at most for a minute.
func TestRetryAfterOfMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, quick(), quick())
		first := m.from.Attempts(Once)
		first.Next(t.Context())
		time.Sleep(time.Millisecond)
		for _, tt := range []struct{ after, rest time.Duration }{{0, 1}, {30, 30}, {20, 30}, {0, 30}, {90, 60}} {
			a := m.from.Attempts(Once) // at the same time as first: it counts once
			a.Source, a.began = first.Source, first.began
			a.Done(t.Context(), &RetryAfterError{After: tt.after * time.Second, Err: errdefs.ErrUnavailable})
			if got := time.Until(m.endpoint.Resting()); got != tt.rest*time.Second {
				t.Errorf("it asks for %d seconds: a pause of %v, want %d seconds", tt.after, got, tt.rest)
			}
		}
		time.Sleep(time.Second)
		m.endpoint.leave(time.Now(), failed, nil)
		if got := time.Until(m.endpoint.Resting()); got != 59*time.Second {
			t.Errorf("after another failure: a pause of %v, want 59 seconds", got)
		}
	})
}

// TestAttemptsAside checks that requests for documents keep to the order, and do not change it.
func TestAttemptsAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, quick(), quick())
		ask := func() string {
			var asked []string
			a := m.from.Attempts(Once)
			a.Aside = true
			for a.Next(t.Context()) {
				asked = append(asked, a.Endpoint.Name)
				a.Done(t.Context(), errdefs.ErrUnavailable)
			}
			return strings.Join(asked, " ")
		}
		for range 2 {
			if got := ask(); got != "mirror origin" {
				t.Errorf("asked %s", got)
			}
		}
		if n := failures(m.endpoint); n > 0 {
			t.Errorf("counted %d failures", n)
		}
		m.endpoint.leave(time.Now(), failed, nil)
		if got := ask(); got != "origin mirror" {
			t.Errorf("asked %s while the mirror rests", got)
		}
		both := m.sources()
		ReportWrong(slog.New(slog.DiscardHandler), both[1], both)
		if got := ask(); got != "origin" {
			t.Errorf("asked %s after the mirror lied", got)
		}
	})
}

// TestRangeChecked checks what happens after wrong bytes.
func TestRangeChecked(t *testing.T) {
	wrong, full := errdefs.ErrDataLoss, errors.New("the disk is full")
	for name, tt := range map[string]struct {
		alone      bool    // there is only the origin
		checks     []error // results
		err        error
		avoided    bool
		mirror, by int64 // requests to the mirror and to the origin
	}{
		"right":                          {checks: []error{nil}, mirror: 1},
		"the mirror lies":                {checks: []error{wrong, nil}, avoided: true, mirror: 1, by: 1},
		"both lie":                       {checks: []error{wrong, wrong}, err: ErrWrong, mirror: 1, by: 1},
		"the check fails":                {checks: []error{full}, err: full, mirror: 1},
		"the origin lies once":           {alone: true, checks: []error{wrong, nil}, by: 2},
		"the origin lies twice":          {alone: true, checks: []error{wrong, wrong}, err: ErrWrong, by: 2},
		"the check fails at the origin":  {checks: []error{wrong, full}, err: full, mirror: 1, by: 1},
		"the origin alone fails a check": {alone: true, checks: []error{full}, err: full, by: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMirrored(t, quick(), quick())
				if tt.alone {
					m.from.Set("a", m.sources()[1:])
				}
				m.fetch.Corrupt, m.fetch.Log = new(atomic.Int64), slog.New(slog.DiscardHandler)
				checks := tt.checks
				src, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<20), 0, func() error {
					err := checks[0]
					checks = checks[1:]
					return err
				})
				if !errors.Is(err, tt.err) || err == nil && src.Endpoint.Mirror != (tt.by == 0) {
					t.Errorf("got %v from %s, want %v", err, src.Endpoint.Name, tt.err)
				}
				if len(checks) > 0 {
					t.Errorf("%d checks were not made", len(checks))
				}
				if mirror, by := m.mirror.calls.Load(), m.origin.calls.Load(); mirror != tt.mirror || by != tt.by {
					t.Errorf("the mirror got %d requests and the origin %d, want %d and %d", mirror, by, tt.mirror, tt.by)
				}
				if avoided := m.endpoint.Counts.Wrong.Load() == 1; avoided != tt.avoided || avoided == m.endpoint.AvoidedUntil().IsZero() {
					t.Errorf("avoided %t, want %t", avoided, tt.avoided)
				}
				lies := int64(0)
				for _, err := range tt.checks {
					if err == wrong {
						lies++
					}
				}
				if n := m.fetch.Corrupt.Load(); n != lies {
					t.Errorf("counted %d wrong ranges, want %d", n, lies)
				}
			})
		})
	}
}
