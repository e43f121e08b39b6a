package main

import (
	"os"
	"runtime"
	"syscall"
	"testing"
)

// TestSeedAsUser refuses users other than root as setup does.
func TestSeedAsUser(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and its user with it
		if os.Geteuid() == 0 {
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
				done <- errno
				return
			}
		}
		done <- new(app).seed(t.Context(), "/nowhere", nil, outTable)
	}()
	if err := <-done; exitCode(t.Context(), err) != 4 {
		t.Errorf("got %v, want exit code 4", err)
	}
}
