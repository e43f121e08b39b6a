package lazy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
)

// Status is the state of a mount.
type Status struct {
	// Mounted reports whether the mount is at its directory. After an unmount there, existing users
	// can still read through it, but new ones cannot find it.
	Mounted bool
	// Keeper names the keeper of the connection, a constant of package fdstore, and Kept reports
	// whether it has the connection.
	Keeper string
	Kept   bool
	// Passthrough and Resend report what the kernel supports for this mount.
	Passthrough, Resend bool
}

// Status returns the state of the mount without accessing it.
func (m *Mount) Status() (Status, error) {
	rec := m.state.rec
	s := Status{Passthrough: rec.Passthrough, Resend: rec.Resend}
	s.Keeper, s.Kept = m.keeper.Status()
	mi, ok, err := findMount(m.dir)
	s.Mounted = ok && mi.fsType == fsType && mi.dev == rec.Dev
	return s, err
}

// Abandon stops serving a mount that is no longer at its directory and drops the connection from
// the keeper. Files in use return errors from then on. Whatever is at the directory now stays.
func (m *Mount) Abandon() error {
	return m.stop(func() error {
		m.keeper.Drop(m.state.rec.name())
		return nil
	})
}

// Detach unmounts what a stopped process left, drops the connection from the holder, which then
// ends, and removes the state. It reports whether there was a mount. It uses only Dir, Apart,
// StateDir, Holder and Log of the options. A service manager drops the connection itself, or on
// request.
func Detach(o Options) (was bool, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	at, err := o.places()
	if err != nil {
		return false, fmt.Errorf("lazy mount: %w", err)
	}
	k := fdstore.New(o.Holder, o.Log)
	for _, f := range k.Take(false) {
		was = true
		_ = f.Close() // a copy
	}
	dirs := at.all(o.StateDir)
	for _, dir := range dirs {
		_, ok, ferr := findMount(dir)
		was, err = was || ok, errors.Join(err, ferr)
	}
	if err == nil {
		err = detachAll(dirs, o.Log)
	}
	if err == nil {
		k.DropAll()
		err = removeState(o.StateDir)
	}
	if err != nil {
		return was, fmt.Errorf("lazy mount: %w", err)
	}
	for _, dir := range dirs {
		_ = os.Remove(dir) // fails if it is not empty
	}
	return was, nil
}
