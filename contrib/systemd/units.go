// Package systemd has the units of the daemon, for "ballast setup" to install.
package systemd

import _ "embed"

var (
	//go:embed ballastd.service
	service string
	//go:embed ballastd.socket
	socket string
	//go:embed ballastd-holder.service
	holder string
)

// The names of the units.
const (
	Service = "ballastd.service"
	Socket  = "ballastd.socket"
	Holder  = "ballastd-holder.service"
)

// Units are all units, by name. Each has an [Install] section.
var Units = map[string]string{Service: service, Socket: socket, Holder: holder}
