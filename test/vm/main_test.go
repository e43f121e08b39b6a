//go:build vm

package vm

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// Flags that the Makefile gives.
var (
	imagesFlag = flag.String("images", "", "directory in which build.sh made the machines")
	cutsFlag   = flag.Int("cuts", 3, "number of power cuts")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *imagesFlag == "" {
		fmt.Fprintln(os.Stderr, "vm: there are no machines without -images; run `make vm`")
		os.Exit(2)
	}
	os.Exit(node.Main(func() int {
		code := m.Run()
		fmt.Print(results.String())
		return code
	}))
}

// image returns the path of something that build.sh made.
func image(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join(*imagesFlag, name))
	if err == nil {
		_, err = os.Stat(p)
	}
	if err != nil {
		t.Fatalf("%v; run `make vm`", err)
	}
	return p
}
