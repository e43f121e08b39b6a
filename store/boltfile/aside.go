package boltfile

import (
	"path/filepath"
	"time"
)

// asideInfix separates the name of a database from the time when it was set aside.
const asideInfix = ".damaged-"

// Aside returns the path to which the database at path is moved when it is set aside now.
func Aside(path string) string {
	return path + asideInfix + time.Now().UTC().Format("20060102T150405.000Z")
}

// SetAside returns the paths of databases that were set aside, oldest first.
func SetAside(path string) ([]string, error) { return filepath.Glob(path + asideInfix + "*") }
