package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/mutants/table"
	"golang.org/x/sync/errgroup"
)

const (
	testTime = 15 * time.Minute // for a test: what hangs is no failure
	stopTime = time.Minute      // for a test to stop what it has started
)

// A runner runs rows of the table.
type runner struct {
	root    string // the repository
	dir     string // for all that is built
	verbose bool
	suites  map[string]*suite // the test programs of packages of end-to-end tests
}

// A suite is a test program that is built once, because it does not depend on the mutant.
type suite struct {
	sync.Once
	name string
	err  error
}

func newRunner(dir string, verbose bool) (*runner, error) {
	out, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("run it in the repository: %w", err)
	}
	return &runner{root: strings.TrimSpace(string(out)), dir: dir, verbose: verbose, suites: map[string]*suite{}}, nil
}

// run runs rows, parallel at a time, and returns the exit code.
func (r *runner) run(ctx context.Context, rows []table.Mutant, parallel int) (int, error) {
	started := time.Now()
	tests := map[string][]string{} // by package
	for _, m := range rows {
		if !slices.Contains(tests[m.Pkg], m.Test) {
			tests[m.Pkg] = append(tests[m.Pkg], m.Test)
		}
		r.suites[m.Pkg] = &suite{name: filepath.Join(r.dir, strings.ReplaceAll(m.Pkg, "/", "-")+".test")}
	}
	var (
		mu                sync.Mutex // guards what follows, and the output
		broken            = map[string]error{}
		survivors, failed []string
		count             int
	)
	g := errgroup.Group{}
	g.SetLimit(parallel)
	for _, pkg := range slices.Sorted(maps.Keys(tests)) {
		g.Go(func() error {
			begin := time.Now()
			results := r.test(ctx, pkg, tests[pkg], nil)
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			good := 0
			for _, name := range tests[pkg] {
				if err := results.passed(name); err != nil {
					broken[pkg+" "+name] = fmt.Errorf("without a mutant: %w", err)
					continue
				}
				good++
			}
			fmt.Printf("%s: %d of %d tests pass without a mutant (%.0f s)\n", pkg, good, len(tests[pkg]), time.Since(begin).Seconds())
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 1, errors.New("interrupted")
	}
	for _, m := range rows {
		g.Go(func() error {
			begin := time.Now()
			verdict, err := "killed", broken[m.Pkg+" "+m.Test]
			why := ""
			if err == nil {
				results := r.test(ctx, m.Pkg, []string{m.Test}, &m)
				if err = results.failed(m.Test); err == nil {
					why = results.why()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			count++
			switch {
			case errors.Is(err, errPasses):
				verdict = "SURVIVES"
				survivors = append(survivors, m.String())
			case err != nil:
				verdict = "ERROR: " + err.Error()
				failed = append(failed, m.String())
			}
			fmt.Printf("[%d/%d] %s: %s (%.0f s)\n", count, len(rows), m, verdict, time.Since(begin).Seconds())
			if r.verbose && why != "" {
				fmt.Print(why)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 1, errors.New("interrupted")
	}
	for _, m := range survivors {
		fmt.Println("survivor:", m)
	}
	for _, m := range failed {
		fmt.Println("error:", m)
	}
	fmt.Printf("%d mutants, %d survivors, %d errors (%.0f min)\n", len(rows), len(survivors), len(failed), time.Since(started).Minutes())
	if len(survivors)+len(failed) > 0 {
		return 1, nil
	}
	return 0, nil
}

// results are the results of the tests of a package.
type results struct {
	out []byte
	err error // not that of a test that fails
}

// errPasses means that a mutant survives.
var errPasses = errors.New("the test passes")

var (
	verdicts = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+) `)
	died     = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|SIG[A-Z]+: .*)$`)
	message  = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: .{0,300}`)
)

// verdict returns PASS, FAIL or SKIP.
func (r *results) verdict(test string) (string, error) {
	if r.err != nil {
		return "", r.err
	}
	if m := died.Find(r.out); m != nil {
		return "", fmt.Errorf("the test program ends with %q", m)
	}
	for _, m := range verdicts.FindAllSubmatch(r.out, -1) {
		if string(m[2]) == test {
			return string(m[1]), nil
		}
	}
	return "", fmt.Errorf("%s has no result; the output ends with\n%s", test, r.out[max(0, len(r.out)-2000):])
}

func (r *results) passed(test string) error {
	v, err := r.verdict(test)
	if err != nil || v == "PASS" {
		return err
	}
	return fmt.Errorf("%s: %s\n%s", test, v, r.why())
}

func (r *results) failed(test string) error {
	v, err := r.verdict(test)
	switch {
	case err != nil || v == "FAIL":
		return err
	case v == "PASS":
		return errPasses
	}
	return errors.New("the test is skipped")
}

// why returns what the tests have said.
func (r *results) why() string {
	all := message.FindAll(r.out, 5)
	return string(bytes.Join(all, []byte("\n"))) + "\n"
}

// test runs tests of a package with a mutant, or with nil.
func (r *runner) test(ctx context.Context, pkg string, tests []string, m *table.Mutant) *results {
	dir, err := os.MkdirTemp(r.dir, "run")
	if err != nil {
		return &results{err: err}
	}
	defer os.RemoveAll(dir)
	overlay := "-overlay="
	if m != nil {
		if overlay, err = r.overlay(dir, *m); err != nil {
			return &results{err: err}
		}
	}
	pattern := "^(" + strings.Join(tests, "|") + ")$"
	if !table.EndToEnd(pkg) {
		env := []string{"GOFLAGS=" + os.Getenv("GOFLAGS") + " " + overlay} // also for programs that the test builds
		out, err := r.command(ctx, r.root, env, "go", "test", "-vet=off", "-count=1", "-v", "-timeout", testTime.String(), "-run", pattern, "./"+pkg)
		return &results{out, notFailure(err)}
	}
	bin := filepath.Join(dir, "bin") + "/"
	if out, err := r.command(ctx, r.root, []string{"CGO_ENABLED=0"}, "go", "build", overlay, "-o", bin, "./cmd/ballast", "./cmd/ballastd"); err != nil {
		return &results{err: fmt.Errorf("%w\n%s", err, out)}
	}
	s := r.suites[pkg]
	s.Do(func() {
		out, err := r.command(ctx, filepath.Join(r.root, "test"), nil, "go", "test", "-c", "-o", s.name, "./"+strings.TrimPrefix(pkg, "test/"))
		if err != nil {
			s.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if s.err != nil {
		return &results{err: s.err}
	}
	out, err := r.command(ctx, filepath.Join(r.root, pkg), []string{node.BinVar + "=" + bin}, s.name, "-test.v", "-test.parallel=4", "-test.timeout", testTime.String(), "-test.run", pattern)
	return &results{out, notFailure(err)}
}

// overlay writes a mutant and returns the flag for it.
func (r *runner) overlay(dir string, m table.Mutant) (string, error) {
	name := filepath.Join(r.root, m.File)
	p, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	if p, err = m.Apply(p); err != nil {
		return "", err
	}
	mutant, list := filepath.Join(dir, filepath.Base(name)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {name: mutant}})
	if err != nil {
		return "", err
	}
	return "-overlay=" + list, errors.Join(os.WriteFile(mutant, p, 0o600), os.WriteFile(list, replace, 0o600))
}

// command returns the output of a program. Ctrl-C interrupts it and what it has started, as a terminal does.
func (r *runner) command(ctx context.Context, dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopTime
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return out, ctx.Err()
	}
	return out, err
}

// notFailure returns err if it is not the exit code of a program.
func notFailure(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
