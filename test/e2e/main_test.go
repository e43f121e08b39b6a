package e2e

import (
	"os"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m.Run)) }
