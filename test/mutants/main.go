// Command mutants shows that the tests hold the promises of contrib/docs/security.md. For each row of its
// table it makes one change to the product that breaks a promise, and runs the test that must fail then.
// A change is compiled with -overlay, so the files of the repository stay as they are.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/ballast-dev/ballast/test/mutants/table"
)

func main() {
	pattern := flag.String("run", ".", "run only rows that match, such as '^19 ' or TestSigned; -list shows the rows")
	list := flag.Bool("list", false, "list the rows and end")
	parallel := flag.Int("parallel", 2, "rows at a time, 1 or 2: tests of some rows fail on a machine that is too busy")
	verbose := flag.Bool("v", false, "show why each test fails")
	flag.Parse()
	code, err := run(*pattern, *list, *verbose, *parallel)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(pattern string, list, verbose bool, parallel int) (code int, err error) {
	re, err := regexp.Compile(pattern)
	if err != nil || parallel < 1 || parallel > 2 || flag.NArg() > 0 {
		return 2, errors.Join(err, errors.New("see -h"))
	}
	var rows []table.Mutant
	for _, m := range table.Mutants {
		if re.MatchString(m.String()) {
			rows = append(rows, m)
		}
	}
	if list {
		for _, m := range rows {
			fmt.Println(m)
		}
		return 0, nil
	}
	if len(rows) == 0 {
		return 2, fmt.Errorf("no row matches %q", pattern)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r, err := newRunner(dir, verbose)
	if err != nil {
		return 1, err
	}
	return r.run(ctx, rows, parallel)
}
