package node

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func TestKeep(t *testing.T) {
	for code, fails := range map[int]bool{1: false, 2: true} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			dir := t.TempDir()
			script := fmt.Sprintf(`test -e began && exec sleep 1000; touch began; exit %d`, code)
			tb := &Program{}
			p := Keep(tb, "program", filepath.Join(dir, "log"), nil, []int{1}, "sh", "-c", "cd "+dir+" && "+script)
			first := p.Pid()
			for begin := time.Now(); p.Pid() == first; time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > limit {
					t.Fatal("it is not started again")
				}
			}
			if !p.Running() {
				t.Error("it does not run")
			}
			p.Stop(tb)
			if p.Running() {
				t.Error("it runs after Stop")
			}
			if tb.Failed() != fails {
				t.Errorf("failed: %v, want %v", tb.Failed(), fails)
			}
		})
	}
}
