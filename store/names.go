package store

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/opencontainers/go-digest"
)

// dbName is the name of the database. Databases that were set aside, or are being made, have a
// suffix that starts with a dot.
const dbName = "store.db"

// Owns reports whether a store makes a name directly below its directory.
func Owns(name string) bool {
	switch name {
	case dbName, object.Dir, object.DamagedDir, object.ViewsDir, staging.Top:
		return true
	}
	return strings.HasPrefix(name, dbName+".")
}

// Marks reports whether a name that a store owns makes Made true, so whoever removes a store removes it last.
func Marks(name string) bool { return name == dbName || name == object.Dir }

// Made reports whether there is a store in a directory, or a part of one: its database or its
// objects.
func Made(dir string) bool {
	db, err := os.Lstat(filepath.Join(dir, dbName))
	if err == nil && db.Mode().IsRegular() {
		return true
	}
	objects, err := os.Lstat(filepath.Join(dir, object.Dir, digest.SHA256.String()))
	return err == nil && objects.IsDir()
}
