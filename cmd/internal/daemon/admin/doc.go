// Package admin serves the admin socket: it answers the requests of package wire from the store and
// from other parts of the daemon.
package admin
