// Package systemd has the units of the daemon, for "ballast setup" to install.
package systemd

import _ "embed"

// Service is ballastd.service.
//
//go:embed ballastd.service
var Service string

// Socket is ballastd.socket.
//
//go:embed ballastd.socket
var Socket string
