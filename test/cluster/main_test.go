package cluster

import (
	"os"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

func TestMain(m *testing.M) { os.Exit(node.Suite{}.Main(m)) }
