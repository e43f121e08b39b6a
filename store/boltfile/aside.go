package boltfile

import (
	"path/filepath"
	"time"
)

// asideInfix is between the name of a database and the time when it was set aside.
const asideInfix = ".damaged-"

// Aside returns the path that the database at path is set aside as now.
func Aside(path string) string {
	return path + asideInfix + time.Now().UTC().Format("20060102T150405.000Z")
}

// SetAside returns the paths of databases that were set aside, oldest first.
func SetAside(path string) ([]string, error) { return filepath.Glob(path + asideInfix + "*") }
