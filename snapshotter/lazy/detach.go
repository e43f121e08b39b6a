package lazy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
)

// Status says how a mount is.
type Status struct {
	// Mounted says that the mount is at its directory. If somebody unmounted it there, files
	// that are read through it can still be, but nobody new finds it.
	Mounted bool
	// Keeper is who is to keep the connection, a constant of package fdstore, and Kept says whether
	// he does.
	Keeper string
	Kept   bool
	// Passthrough and Resend say what this kernel and this mount can do.
	Passthrough, Resend bool
}

// Status looks at the mount, without touching it.
func (m *Mount) Status() (Status, error) {
	rec := m.state.rec
	s := Status{Passthrough: rec.Passthrough, Resend: rec.Resend}
	s.Keeper, s.Kept = m.keeper.Status()
	mi, ok, err := findMount(m.dir)
	s.Mounted = ok && mi.fsType == fsType && mi.dev == rec.Dev
	return s, err
}

// Abandon stops serving a mount that is no longer at its directory, and has the keeper let go.
// Files that are in use give errors from then on. What is at the directory now stays.
func (m *Mount) Abandon() error {
	return m.stop(func() error {
		m.keeper.Drop(m.state.rec.name())
		return nil
	})
}

// Detach unmounts what a process that does not run any more left, tells the holder to let go, which
// ends it, and removes the state. It says whether something was mounted. Only Dir, Apart, StateDir, Holder
// and Log of the options count; a service manager lets go by itself or has to be told otherwise.
func Detach(o Options) (was bool, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	at, err := o.places()
	if err != nil {
		return false, fmt.Errorf("lazy mount: %w", err)
	}
	k := fdstore.New(o.Holder, namePrefix, o.Log)
	for _, f := range k.Take() {
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
	if err = errors.Join(err, k.Close()); err != nil {
		return was, fmt.Errorf("lazy mount: %w", err)
	}
	for _, dir := range dirs {
		_ = os.Remove(dir) // if it is empty and nobody else is there
	}
	return was, nil
}
