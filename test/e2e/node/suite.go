package node

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Suite runs the tests of a package, several at a time: tests of nodes wait more than they compute.
// Each test function has a process of its own, with the namespaces of [Main] and a network namespace in
// which the loopback device is the only one. So a test has a machine for itself: it may use fixed paths and
// ports, mount over /etc, and set variables of the process.
type Suite struct {
	// First are the names of long tests, which start first.
	First []string

	// Prepare is called before a test, in its namespaces; nil does nothing.
	Prepare func() error
}

// Main is Main for TestMain. -parallel is the number of tests at a time, and a test may have parallel
// subtests. The output of a test is printed when it ends. A single test, or a -run pattern of subtests,
// prints at once.
func (s Suite) Main(m *testing.M) int {
	if !flag.Parsed() {
		flag.Parse()
	}
	switch stage := os.Getenv(stageVar); {
	case stage == "init":
		return initProcess()
	case stage == "run":
		if s.Prepare != nil {
			if err := s.Prepare(); err != nil {
				fmt.Fprintln(os.Stderr, "node: prepare:", err)
				return 1
			}
		}
		return m.Run()
	case stage == "list", flagOf("list") != "":
		return m.Run()
	}
	run := flagOf("run")
	if run == "" {
		run = "."
	}
	tests, err := s.tests(run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "node: list the tests:", err)
		return 1
	}
	if len(tests) < 2 || strings.Contains(run, "/") {
		return outer(again("init", os.Args[1:]), syscall.CLONE_NEWNET)
	}
	return runAll(tests)
}

// flagOf returns a flag of the testing package.
func flagOf(name string) string { return flag.Lookup("test." + name).Value.String() }

// tests returns the names of the test functions that match a pattern, in the order of their start.
func (s Suite) tests(pattern string) (names []string, err error) {
	cmd := again("list", []string{"-test.list", pattern})
	cmd.Stdout = nil
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return s.rank(a) - s.rank(b) })
	return names, nil
}

func (s Suite) rank(name string) int {
	if i := slices.Index(s.First, name); i >= 0 {
		return i
	}
	return len(s.First)
}

// runAll runs tests in processes of their own and returns the exit code.
func runAll(tests []string) int {
	started, limit := time.Now(), flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	stop := make(chan os.Signal, 1) // the running tests get it too
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(stop)
	var (
		mu     sync.Mutex // guards output, failed and why
		failed []string
		why    [][]byte
		wg     sync.WaitGroup
	)
	next := make(chan string)
	for range flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int) {
		wg.Go(func() {
			for name := range next {
				var out bytes.Buffer
				args := append(slices.Clone(os.Args[1:]), "-test.run=^"+name+"$")
				if limit > 0 {
					args = append(args, fmt.Sprint("-test.timeout=", max(limit-time.Since(started), time.Second)))
				}
				cmd := again("init", args)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, &out, &out
				code := outer(cmd, syscall.CLONE_NEWNET)
				mu.Lock()
				os.Stdout.Write(withoutVerdict(out.Bytes()))
				if code != 0 {
					failed = append(failed, name)
					why = append(why, message.FindAll(out.Bytes(), 20)...)
				}
				mu.Unlock()
			}
		})
	}
	for _, name := range tests {
		select {
		case next <- name:
			continue
		case <-stop:
			mu.Lock()
			failed = append(failed, name+" and later tests (interrupted)")
			mu.Unlock()
		}
		break
	}
	close(next)
	wg.Wait()
	if len(failed) > 0 {
		// Once more at the end, because logs of machines are long and CI cuts its log.
		fmt.Printf("%s\nfailed: %s\nFAIL\n", bytes.Join(why, []byte("\n")), strings.Join(failed, " "))
		return 1
	}
	fmt.Println("PASS")
	return 0
}

// message matches the begin of what a test says.
var message = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: .{0,400}`)

// verdict matches the last line of a test program that has ended normally.
var verdict = regexp.MustCompile(`(?m)^\x16?(PASS|FAIL)\n\z`)

// withoutVerdict returns the output of a test without the last line, which tells about the whole package.
func withoutVerdict(out []byte) []byte { return verdict.ReplaceAll(out, nil) }
