package cluster

import (
	"fmt"
	"os"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/ballast-dev/ballast/test/e2e/systemctl"
)

func TestMain(m *testing.M) {
	systemctl.Main()
	if node.Inside() && len(os.Args) == 4 && os.Args[1] == machineArg {
		if err := runMachine(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(node.Suite{First: []string{"TestInstall", "TestManyAgents"}}.Main(m))
}
