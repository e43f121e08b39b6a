package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// ErrWrong means that all sources were asked, and none has the right bytes.
var ErrWrong = errors.New("no source has the right bytes")

// ErrNoSource means that there are no sources. It is errdefs.ErrNotFound.
var ErrNoSource = fmt.Errorf("no registry is known for it; pull the model again by its name: %w", errdefs.ErrNotFound)

// Once is a Retry without repetitions.
var Once = Retry{Tries: 1}

// Attempts are the requests for the same bytes, to one source after another until one of them gives the bytes. They are
// the only place that turns to another server after a failure:
//
//	for t := from.Attempts(retry); t.Next(ctx); {
//		body, start, err := t.Fetch(ctx, …)
//		t.Done(ctx, err)
//	}
//	err = t.Err()
//
// In a round, sources are asked in the order of Sources.Order, but for those whose error is final (Final, ErrNoRanges).
// Rounds are repeated as the Retry says, which gets the error that Err would return.
type Attempts struct {
	// Source is the one that is asked, from Next to Done.
	Source

	// Aside is set before the first Next for requests that say nothing about how a server gives blobs, such as those
	// for manifests: they keep to the order, and change nothing of it.
	Aside bool

	from  *Sources
	retry Retry
	first string // key of the source to begin the first round with, or ""

	start, began time.Time        // of the first request, and of this one
	round, left  []Source         // the sources of a round, and those that were not asked yet
	back         int              // of left, at its end: mirrors that rest, asked when the others have failed
	spare        bool             // another source may be asked in this round
	errs         map[string]error // by key of those that were asked: the last error
	rounds       int              // that have ended, since the last progress
	lied         []Source         // that gave wrong bytes
	most         int              // that may do so
	over         bool
	err          error
}

// Attempts returns the attempts of a request.
func (s *Sources) Attempts(r Retry) *Attempts {
	return &Attempts{from: s, retry: r, errs: map[string]error{}}
}

// Ask returns the attempts of a request to sources of which only the endpoints are remembered.
func Ask(list []Source, r Retry) *Attempts {
	var s Sources
	s.Set("", list)
	return s.Attempts(r)
}

// Next chooses the source to ask. It waits before it begins another round. It returns false at the end, see Err.
func (t *Attempts) Next(ctx context.Context) bool {
	for !t.over {
		if len(t.left) == 0 && !t.begin(ctx) {
			return false
		}
		others := len(t.left) > t.back
		src := t.left[0]
		t.left = t.left[1:]
		t.back = min(t.back, len(t.left))
		t.spare = slices.ContainsFunc(t.left, t.open)
		switch {
		case !t.open(src):
		case !t.Aside && !src.Endpoint.enter(t.spare && others):
			t.left = append(t.left, src)
			t.back++
		default:
			t.Source, t.began, t.errs[src.Key()] = src, time.Now(), nil
			return true
		}
	}
	return false
}

// begin begins a round: the first one, or another one if there is a reason for it.
func (t *Attempts) begin(ctx context.Context) bool {
	more := true
	if t.start.IsZero() {
		t.start = time.Now()
	} else {
		t.rounds++
		more = slices.ContainsFunc(t.round, t.open) && t.retry.again(ctx, t.rounds, t.start, t.failure())
	}
	if more {
		t.round = t.from.Order()
		t.left, t.back = t.round, 0
		if i := slices.IndexFunc(t.round, func(src Source) bool { return src.Key() == t.first }); i > 0 {
			t.left = append(t.round[i:i+1:i+1], slices.Concat(t.round[:i], t.round[i+1:])...)
		}
		t.first = ""
		t.most = max(t.most, 2, len(t.round))
		more = slices.ContainsFunc(t.round, t.open)
	}
	if !more {
		t.end(ctx, t.failure())
	}
	return more
}

// end ends the attempts with an error, or with that of ctx if it is done.
func (t *Attempts) end(ctx context.Context, err error) {
	t.over, t.err = true, err
	if ctx.Err() != nil {
		t.err = context.Cause(ctx)
	}
}

// open reports whether a source can be asked, again if it was asked before.
func (t *Attempts) open(src Source) bool {
	err := t.errs[src.Key()]
	return err == nil || !Final(err) && !errors.Is(err, ErrNoRanges)
}

// Done records the result of the request to the source. Without an error, it was the last one.
func (t *Attempts) Done(ctx context.Context, err error) {
	err = Foreign(ctx, err)
	if !t.Aside {
		t.from.asked(t.Source, t.began, outcomeOf(ctx, t.Source, err), err)
	}
	switch {
	case err == nil:
		t.over = true
	case ctx.Err() != nil, errors.Is(err, ErrNoRanges) && !(t.Endpoint.isMirror() && t.spare):
		t.end(ctx, err)
	default:
		t.errs[t.Key()] = err
	}
}

// wrong records that the source gave wrong bytes, after Done. Others are asked at once, and the same one only if there
// are none.
func (t *Attempts) wrong(ctx context.Context, err error) {
	t.lied = append(t.lied, t.Source)
	t.from.Blame(t.Source)
	t.anew()
	if len(t.lied) >= t.most {
		t.end(ctx, fmt.Errorf("%w: %w", ErrWrong, err))
	}
}

// anew begins again, after Done.
func (t *Attempts) anew() { t.over, t.left, t.start = false, nil, time.Time{} }

// Err returns nil after a success. Otherwise it is the error of ctx, or the most informative one of the sources: that
// of an origin, if one was asked, since a mirror does not know what there is. One that is not final goes first, then
// one that is not errdefs.ErrNotFound, and then that of a server. The texts of mirrors follow it.
func (t *Attempts) Err() error { return t.err }

// failure returns the error of the sources.
func (t *Attempts) failure() (err error) {
	of := func(src Source) bool { return !src.Endpoint.isMirror() && t.errs[src.Key()] != nil }
	origin := slices.ContainsFunc(t.round, of)
	var others []string
	best := -1
	for _, src := range t.round {
		failed, rank := t.errs[src.Key()], 0
		switch {
		case failed == nil:
			continue
		case origin && src.Endpoint.isMirror():
			if !errors.Is(failed, ErrNotAsked) {
				others = append(others, failed.Error())
			}
			continue
		case t.open(src):
			rank = 3
		case !errdefs.IsNotFound(failed):
			rank = 2
		case src.Endpoint != nil:
			rank = 1
		}
		if rank > best || rank == best && rank != 2 { // of several servers, the last one that was asked
			err, best = failed, rank
		}
	}
	switch {
	case err == nil:
		return ErrNoSource
	case len(others) > 0:
		return fmt.Errorf("%w (others: %s)", err, strings.Join(others, "; "))
	}
	return err
}

// outcomeOf returns what the error of a request says about the endpoint of a source.
func outcomeOf(ctx context.Context, src Source, err error) outcome {
	switch {
	case err == nil:
		return good
	case ctx.Err() != nil, errors.Is(err, ErrRevoked), errors.Is(err, errCompare), errors.Is(err, errSilent):
		return unclear
	case errors.Is(err, ErrNotAsked):
		return unasked
	case Final(err), errors.Is(err, ErrNoRanges):
		if !src.Endpoint.isMirror() && !errdefs.IsNotFound(err) {
			return unclear // it may have the blob
		}
		return absent
	case errors.Is(err, errSlow):
		return slow
	}
	return failed
}
