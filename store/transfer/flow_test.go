package transfer

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSpent counts the time of stages that have ended, and of those that have not.
func TestSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewScheduler(Options{Connections: 1, Chunk: 1, Readers: 1, Unpackers: 1}).NewFlow(Soon)
		time.Sleep(time.Hour)
		leave := f.Part().Enter(Network)
		time.Sleep(3 * time.Second)
		other := f.Part().Enter(Network)
		time.Sleep(time.Second)
		leave()
		leaveDisk := f.Enter(Disk)
		time.Sleep(2 * time.Second)
		if got, want := f.Spent(), (Spent{Network: 7 * time.Second, Disk: 2 * time.Second}); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
		leaveDisk()
		other()
		time.Sleep(time.Minute)
		if got, want := f.Spent(), (Spent{Network: 7 * time.Second, Disk: 2 * time.Second}); got != want {
			t.Errorf("at the end: got %v, want %v", got, want)
		}
	})
}
