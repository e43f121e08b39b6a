package doctor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
)

// TestSecondCopy checks when the copies of Dragonfly are worth a warning.
func TestSecondCopy(t *testing.T) {
	dir := t.TempDir()
	task := filepath.Join(dir, dragonflyDir, "content/tasks/abc")
	if err := os.MkdirAll(task, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(task, "piece"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		kind     string
		capacity int64
		want     node.Status
		n        int
	}{{"dragonfly", 100 << 20, node.OK, 1}, {"dragonfly", 5 << 20, node.Warn, 1}, {"spegel", 5 << 20, node.OK, 0}} {
		d := &Doctor{Config: &config.Config{Mirror: []config.Mirror{{Kind: tt.kind}}}, Node: &node.View{Host: node.Host{Root: dir}}}
		d.mirrors(&wire.Health{Usage: wire.Usage{Capacity: tt.capacity, Unique: 3 << 20}})
		if len(d.Findings) != tt.n || tt.n > 0 && d.Findings[0].Status != tt.want {
			t.Errorf("%s, capacity %d: %+v", tt.kind, tt.capacity, d.Findings)
		}
	}
}
