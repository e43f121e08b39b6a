package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// TB is the part of *testing.T used for the set-up; Program implements it too.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// Program is the TB of a program that is not a test.
type Program struct {
	mu       sync.Mutex // guards cleanups, failed
	cleanups []func()
	failed   bool
}

type stopped struct{}

// Run calls f and then its clean-ups, last first, and returns the exit code.
func Run(f func(TB)) (code int) {
	p := &Program{}
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(stopped); !ok {
				panic(v)
			}
		}
		if p.failed {
			code = 1
		}
	}()
	defer func() {
		for i := len(p.cleanups) - 1; i >= 0; i-- {
			p.cleanups[i]()
		}
	}()
	f(p)
	return 0
}

// Helper does nothing.
func (p *Program) Helper() {}

// Logf prints a line on standard error.
func (p *Program) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Errorf prints a line and makes the program fail at its end.
func (p *Program) Errorf(format string, args ...any) {
	p.mu.Lock()
	p.failed = true
	p.mu.Unlock()
	p.Logf(format, args...)
}

// Fatalf prints a line and ends the program after its clean-ups. It must be called in the goroutine
// of the function given to Run.
func (p *Program) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	panic(stopped{})
}

// Failed reports whether Errorf or Fatalf was called.
func (p *Program) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// Cleanup registers f to be called at the end.
func (p *Program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

// repository is the directory of the product's go.mod, in which tests and programs are started, or ""; that of a
// release is started elsewhere.
var repository = func() string {
	for dir, _ := os.Getwd(); dir != "" && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", versionsFile)); err == nil {
			return dir
		}
	}
	return ""
}()

// BinVar is the environment variable with a directory of other builds of ballast and ballastd.
const BinVar = "BALLAST_BIN"

// Binary returns the path of ballast or ballastd, as built by make.
func Binary(t TB, name string) string {
	if dir := os.Getenv(BinVar); dir != "" {
		return filepath.Join(dir, name)
	}
	return built(t, filepath.Join("bin", name), "make build")
}

// Tool returns the path of containerd, ctr or the shim in the node's version, as built by make
// tools-all.
func (n *Node) Tool(name string) string { return ToolOf(n.tb, n.version, name) }

// Tool is Node.Tool for the default version.
func Tool(t TB, name string) string { return ToolOf(t, defaultVersion(t), name) }

// ToolOf is Tool for a version of Versions.
func ToolOf(t TB, version, name string) string {
	return built(t, filepath.Join(".cache/tools", version, name), "make tools-all")
}

// Runc returns the path of runc, as built by make tools.
func Runc(t TB) string { return built(t, ".cache/tools/runc/runc", "make tools") }

// Docker returns the path of dockerd or docker, as built by make tools-all.
func Docker(t TB, name string) string {
	return built(t, filepath.Join(".cache/tools/docker", name), "make tools-all")
}

func built(t TB, name, how string) string {
	t.Helper()
	if repository == "" {
		return installed(t, filepath.Base(name))
	}
	p := filepath.Join(repository, name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%s is not built; run `%s`: %v", name, how, err)
	}
	return p
}

// installed returns the path of a program beside this one, or of the machine.
func installed(t TB, name string) string {
	t.Helper()
	if self, err := os.Executable(); err == nil {
		p := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is neither beside this program nor in PATH: install containerd 1.7 to 2.4 with ctr, and runc", name)
	}
	return p
}
