package signature

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/cosign"
	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/ballast-dev/ballast/convert/signature/oms"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// checkTime limits the time of a Check.
const checkTime = time.Minute

// A Checker checks models. Rules and Store are required; other fields of a literal can be zero.
type Checker struct {
	Rules []*Rule
	Store *store.Store

	// Count is called with the mode and state of each Check by a rule that is not off; may be nil.
	Count func(Mode, State)

	// Keyless verifies keyless signatures.
	Keyless keyless.Program

	// Log is the logger for models that violate a rule; nil discards.
	Log *slog.Logger

	slots slots
}

// A Subject is the object of a check.
type Subject struct {
	// Names (remote.Ref.Name) are the names that it is pulled by. The rule of each name applies.
	// Without names, because they are unknown, one of the enforced rules must be satisfied.
	Names []string

	// Manifests are the manifests whose signatures count: the origin, its converted image, and an
	// index that contains it.
	Manifests []digest.Digest

	// FilesOnly are those of Manifests that do not cover the files of the model: of their signatures only those of
	// the files count.
	FilesOnly []digest.Digest

	// Image is the model. Without a table it is not a model, but another artifact with a manifest.
	Image store.Image

	// Repositories may have signatures, in order: the repositories of the names.
	Repositories []*remote.Repository

	// Complete is true if all files are complete: what is unknown now stays unknown.
	Complete bool

	// Again looks for signatures even if some were found before.
	Again bool
}

// host returns the host whose registry may slow down a check.
func (s *Subject) host() string {
	if len(s.Names) == 0 {
		return ""
	}
	host, _, _ := strings.Cut(s.Names[0], "/")
	return host
}

// about returns the digest under which verdicts are stored.
func (s *Subject) about() digest.Digest {
	if s.Image.Table != "" || len(s.Manifests) == 0 {
		return s.Image.Table
	}
	return s.Manifests[0]
}

func (s *Subject) String() string {
	if len(s.Names) == 0 {
		return "model of table " + s.Image.Table.String()
	}
	return strings.Join(s.Names, ", ")
}

// A State is the result of a Check.
type State string

// The states.
const (
	Accepted State = "accepted"
	Refused  State = "refused"
	Pending  State = "pending" // check again when the model is complete
	Failed   State = "failed"  // unknown, for example because a registry does not answer
)

// A Result is the result of a Check by one rule.
type Result struct {
	Rule    string
	Mode    Mode
	State   State
	Signers []string // the signers, if Accepted
	Reasons []string // the reasons, otherwise

	// Kept is the time of the check if the result is stored from before.
	Kept time.Time

	err error // of Failed
}

// A Refusal is the error for a model that a rule refuses. It matches errdefs.ErrFailedPrecondition.
type Refusal struct {
	Subject string
	Result  Result
}

func (e *Refusal) Error() string {
	return fmt.Sprintf("%s is refused by [[verify.rule]] %q: %s; sign or change the model, or change the rule (\"ballast verify --signatures REF\" checks again)",
		e.Subject, e.Result.Rule, strings.Join(e.Result.Reasons, "; "))
}

// Unwrap returns errdefs.ErrFailedPrecondition.
func (e *Refusal) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Allow checks a model. It returns a *Refusal if an enforced rule refuses the model, or the error
// that prevented the check. It reports whether the model must be checked again when it is complete.
func (c *Checker) Allow(ctx context.Context, s Subject) (pending bool, err error) {
	if c == nil {
		return false, nil
	}
	for _, r := range c.Check(ctx, s) {
		if r.Mode != Enforce {
			if r.State != Accepted && c.Log != nil {
				c.Log.WarnContext(ctx, "model violates a signature rule", "ref", s.String(), "rule", r.Rule, "state", r.State, "reasons", r.Reasons)
			}
			continue
		}
		switch r.State {
		case Refused:
			return false, &Refusal{s.String(), r}
		case Failed:
			return false, fmt.Errorf("check the signatures of %s: %w", s.String(), r.err)
		case Pending:
			pending = true
		}
	}
	return pending, nil
}

// Check checks a model by the rules of its names that are not off. The result is empty if there are
// none.
func (c *Checker) Check(ctx context.Context, s Subject) []Result {
	rules := c.rules(s.Names)
	if len(rules) == 0 {
		return nil
	}
	ctx, end := span.Start(ctx, span.Verify, span.Ref(s.String()))
	defer end(nil) // what the rules say is no error of the check
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	ev := &evidence{c: c, s: s, rules: rules}
	var out []Result
	for _, r := range rules {
		out = append(out, c.by(ctx, r, s, ev))
	}
	if len(s.Names) == 0 {
		out = one(out)
	}
	if c.Count != nil {
		for _, r := range out {
			c.Count(r.Mode, r.State)
		}
	}
	return out
}

// Found describes the signatures of a model without checking them: who claims to have signed what.
func (c *Checker) Found(ctx context.Context, s Subject) (found []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	sl, err := c.slots.take(ctx, s.host())
	if err != nil {
		return nil, err
	}
	defer sl.done()
	ctx = sl.ctx
	m, err := c.model(s)
	if err != nil {
		return nil, err
	}
	ev := &evidence{c: c, s: s, anyone: true}
	ev.gather(ctx, m)
	for _, b := range ev.bundles {
		what := "a statement about " + b.of.String()
		switch b.PredicateType() {
		case oms.PredicateType:
			what = "the files of the model"
		case cosign.PredicateType:
			what = "manifest " + b.of.String()
		}
		found = append(found, what+": "+b.Claim())
	}
	for _, p := range ev.payloads {
		found = append(found, "manifest "+p.of.String()+": a key without a name")
	}
	if len(found) == 0 {
		err = ev.err
	}
	return found, err
}

// rules returns the rules of names without duplicates: of each name the first that matches, and before it those that
// may match.
func (c *Checker) rules(names []string) (out []*Rule) {
	for _, r := range c.Rules {
		if len(names) == 0 && r.o.Mode == Enforce {
			out = append(out, r)
		}
	}
	for _, n := range names {
		for _, r := range c.Rules {
			is := r.o.Matches(n)
			if (is || r.o.MayMatch != nil && r.o.MayMatch(n)) && r.o.Mode != Off && !slices.Contains(out, r) {
				out = append(out, r)
			}
			if is {
				break
			}
		}
	}
	return out
}

// one returns the best of several results.
func one(all []Result) []Result {
	for _, state := range []State{Accepted, Pending, Failed, Refused} {
		if i := slices.IndexFunc(all, func(r Result) bool { return r.State == state }); i >= 0 {
			return all[i : i+1]
		}
	}
	return nil
}

// Known returns the stored verdicts about a model by the rules of its names.
func (c *Checker) Known(s Subject) ([]Result, error) {
	if c == nil {
		return nil, nil
	}
	var out []Result
	for _, r := range c.rules(s.Names) {
		v, err := c.kept(r, s)
		if err != nil {
			return nil, err
		}
		if v != nil {
			out = append(out, Result{Rule: r.o.Name, Mode: r.o.Mode, State: Accepted, Signers: v.Signers, Kept: v.Time})
		}
	}
	return out, nil
}

// Whole reports whether a signature that satisfied a rule for a table covers no byte of a file before
// the whole file.
func (c *Checker) Whole(table digest.Digest) (bool, error) {
	if c == nil {
		return false, nil
	}
	all, err := c.Store.Catalog.Verdicts(table)
	return slices.ContainsFunc(all, func(v store.Verdict) bool { return v.Whole }), err
}

// accept sets the result of a rule that is satisfied by the known files. Files whose bytes can be read
// before the verdict covers them are compared first, which takes until the model is complete.
func (c *Checker) accept(res *Result, s Subject, v store.Verdict) {
	res.State, res.Signers, res.Kept = Accepted, v.Signers, v.Time
	if s.Image.Table != "" && !s.Complete && v.Whole {
		res.State, res.Reasons = Pending, append([]string{"its files are compared with the signed digests when it is complete"}, v.Signers...)
	}
}

// kept returns the stored verdict of a rule, or nil.
func (c *Checker) kept(r *Rule, s Subject) (*store.Verdict, error) {
	all, err := c.Store.Catalog.Verdicts(s.about())
	if err != nil {
		return nil, err
	}
	policy := r.policy(s)
	i := slices.IndexFunc(all, func(v store.Verdict) bool { return v.Policy == policy })
	if i < 0 {
		return nil, nil
	}
	return &all[i], nil
}

// by checks a model by one rule.
func (c *Checker) by(ctx context.Context, r *Rule, s Subject, ev *evidence) Result {
	res := Result{Rule: r.o.Name, Mode: r.o.Mode}
	fail := func(err error) Result {
		res.State, res.err, res.Reasons = Failed, err, []string{err.Error()}
		return res
	}
	for _, wait := range []bool{true, false} { // after the wait, another check may have stored a verdict
		v, err := c.kept(r, s)
		switch {
		case err != nil:
			return fail(err)
		case v != nil && !s.Again:
			c.accept(&res, s, *v)
			return res
		case wait && len(r.signers) > 0: // no registry is asked for others
			sl, err := c.slots.take(ctx, s.host())
			if err != nil {
				return fail(err)
			}
			defer sl.done()
			ctx = sl.ctx
		}
	}
	m, err := c.model(s)
	if err != nil {
		return fail(err)
	}
	why, err := c.content(r, s, m)
	switch {
	case err != nil:
		return fail(err)
	case why != "":
		res.State, res.Reasons = Refused, []string{why}
		return res
	}
	var v store.Verdict
	res.State = Accepted
	if len(r.signers) > 0 {
		res.State, v, res.Reasons, res.err = ev.find(ctx, r, m)
	}
	if res.State == Accepted && r.o.DenyCode && m.pending() {
		res.State, res.Reasons = Pending, []string{"its files are not known until it is complete"}
	}
	if res.State != Accepted {
		return res
	}
	v.Policy, v.Whole = r.policy(s), v.Whole || m.unread()
	if err := c.Store.Catalog.PutVerdict(s.about(), v); err != nil {
		return fail(err)
	}
	c.accept(&res, s, v)
	return res
}

// A model has the known files of a subject.
type model struct {
	table *filetable.Table // nil: not a model
	files []filetable.File // as shown, as far as known
	known bool             // files are complete, with digests
	all   bool             // there will be no more files
}

// pending reports whether more files will be known later.
func (m *model) pending() bool { return m.table != nil && !m.known && !m.all }

// chunked reports whether the table has digests of parts of files: whoever wrote it chose them.
func (m *model) chunked() bool {
	return m.table != nil && slices.ContainsFunc(m.table.Files, func(f filetable.File) bool { return f.Source != nil && len(f.Source.Chunks) > 1 })
}

// unread reports whether names in the table are from the headers of tars that have not been here: no signature covers
// them.
func (m *model) unread() bool {
	return m.table != nil && !m.known && slices.ContainsFunc(m.table.Blobs, func(b filetable.Blob) bool { return b.Index != "" })
}

// model returns the known files of a subject.
func (c *Checker) model(s Subject) (m model, err error) {
	if s.Image.Table == "" {
		return model{}, nil
	}
	m.all = s.Complete
	if m.table, err = c.Store.Table(s.Image.Table); err != nil {
		return m, err
	}
	m.files, err = c.Store.Views.Listing(s.Image.Table)
	switch {
	case err == nil:
		m.known = true
	case errdefs.IsUnavailable(err):
		m.files = m.table.Files
	default:
		return m, err
	}
	return m, nil
}

// errNone means that there is nothing that may be a signature.
var errNone = errors.New("no signature was found")
