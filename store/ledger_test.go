package store

import (
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// A fetch that fits is admitted while another one waits for an eviction, which may take long.
func TestReserveBesideEviction(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	reserve := func(name string, need int64, left func() int64) chan error {
		done := make(chan error, 1)
		go func() {
			done <- s.reserve(need, &reservation{reserved: reserved{table: digest.FromString(name)}, left: left})
		}()
		return done
	}
	asked := make(chan bool, 3) // how much is left of the first, for each of the other attempts
	if err := <-reserve("first", 1, func() int64 { asked <- true; return 1 }); err != nil {
		t.Fatal(err)
	}
	resume := s.objects.Pause() // no eviction ends
	large := reserve("large", 1<<60, nil)
	<-asked
	small := reserve("small", 1, func() int64 { return 1 })
	select {
	case err := <-small:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("waits for the eviction")
	}
	resume()
	if err := <-large; err == nil {
		t.Error("an exabyte was admitted")
	}
}

// A fetch that fits by what is known of the reservations of others asks none of them: there can be many.
func TestReserveAsksNobody(t *testing.T) {
	s, err := Open(t.TempDir(), Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	var asked, left int64
	reserve := func(name string, need int64, left func() int64) error {
		return s.reserve(need, &reservation{reserved: reserved{table: digest.FromString(name)}, left: left})
	}
	free, _, err := s.free()
	if err != nil {
		t.Fatal(err)
	}
	half := free / 2
	left = half
	if err := reserve("first", half, func() int64 { asked++; return left }); err != nil {
		t.Fatal(err)
	}
	if err := reserve("second", 1, func() int64 { return 1 }); err != nil || asked > 0 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	if err := reserve("third", half+half/2, nil); err == nil || asked == 0 {
		t.Errorf("more than there is: asked %d times: %v", asked, err)
	}
	left = 0 // it has written everything, elsewhere
	if err := reserve("fourth", half+half/2, func() int64 { return 0 }); err != nil {
		t.Errorf("when the first needs nothing more: %v", err)
	}
}
