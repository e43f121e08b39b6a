package dirs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/continuity/fs"
)

// Names directly below the root, besides those of the store, the snapshotter and package facadetls.
const (
	Archives  = "archives"   // copies of archives from servers without range requests
	Lazy      = "lazy"       // the mount of incomplete files; can be beside the sockets instead
	LazyState = "lazy-state" // of that mount
	Secrets   = "secrets"    // sealed pull secrets
)

// Names beside the socket for containerd.
const (
	Holder = "holder.sock" // of the process that keeps the lazy mount
	Models = "models"      // default mount points of models on the host
)

// Roles are directories beside the admin socket, each with one socket that has some of its paths, for mounting into
// pods.
const (
	Status = "status" // shows the health of the daemon, and changes nothing
	Fleet  = "fleet"  // downloads models, and sets the pins of the cluster
)

// RoleAddress returns the path of the socket of a role.
func RoleAddress(c *config.Config, role string) string {
	return filepath.Join(filepath.Dir(c.AdminAddress), role, roleSocket(role))
}

func roleSocket(role string) string { return role + ".sock" }

// freshSuffix is the suffix of a socket until it has its mode.
const freshSuffix = ".new"

// A Dir is a directory of the daemon.
type Dir struct {
	Key  string // of the configuration: "root", "address" or "admin_address"
	Path string

	sockets []string // names; nil for the root
	nested  []string // directories that can be in this one
}

// All returns the root and the directories of the sockets, each once.
func All(c *config.Config) []Dir {
	root, run, admin := filepath.Clean(c.Root), filepath.Dir(filepath.Clean(c.Address)), filepath.Dir(filepath.Clean(c.AdminAddress))
	sockets := []string{Holder, filepath.Base(c.Address), filepath.Base(c.AdminAddress)}
	nested := []string{root, run, admin}
	all := []Dir{{Key: "root", Path: root, nested: nested}, {Key: "address", Path: run, sockets: sockets, nested: nested}}
	if admin != run {
		all = append(all, Dir{Key: "admin_address", Path: admin, sockets: sockets, nested: nested})
	}
	return all
}

// A kind is how a name is removed.
type kind int

const (
	foreign     kind = iota // never
	tree                    // with everything in it
	socket                  // if it is a socket
	mountPoint              // if it is an empty directory
	mountPoints             // if it is a directory that contains only empty ones with names of digests
	roleDir                 // if it is a directory that contains only the socket of its role
)

// kind returns the kind of a name in the directory.
func (d *Dir) kind(name string) kind {
	if d.sockets == nil {
		switch name {
		case Archives, Lazy, LazyState, Secrets, filepath.Base(facadetls.Dir("/")):
			return tree
		}
		if store.Owns(name) || snapshotter.Owns(name) {
			return tree
		}
		return foreign
	}
	switch name {
	case Lazy:
		return mountPoint
	case Models:
		return mountPoints
	case Status, Fleet:
		return roleDir
	}
	for _, s := range d.sockets {
		if name == s || name == s+freshSuffix {
			return socket
		}
	}
	return foreign
}

// digestName matches the names in Models.
var digestName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// lostAndFound is a directory of ext4, which belongs to the file system.
const lostAndFound = "lost+found"

// resolve returns the path of the directory in this process with all symbolic links of the host
// followed, and the path on the host that this stands for.
func (d *Dir) resolve(host string) (here, there string, err error) {
	host = filepath.Clean("/" + host)
	if here, err = fs.RootPath(host, d.Path); err != nil {
		return "", "", err
	}
	return here, filepath.Join("/", strings.TrimPrefix(here, host)), nil
}

// used reports whether ballast has used the directory, whose path in this process is dir.
func (d *Dir) used(dir string) bool {
	if d.sockets == nil {
		return store.Made(dir) || snapshotter.Made(dir) || facadetls.Made(dir)
	}
	for _, s := range d.sockets {
		if info, err := os.Lstat(filepath.Join(dir, s)); err == nil && info.Mode().Type() == os.ModeSocket {
			return true
		}
	}
	return false
}
