package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == mappedReaderArg {
		if err := mappedReader(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 2 && os.Args[1] == nobodyArg {
		if err := asNobody(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	systemctl.Main()
	os.Exit(node.Suite{First: []string{"TestVersions"}}.Main(m))
}
