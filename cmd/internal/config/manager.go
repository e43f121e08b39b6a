package config

import (
	"os"
	"strconv"
)

// A ServiceManager has the settings of the service manager in the environment.
// https://www.freedesktop.org/software/systemd/man/257/sd_listen_fds.html
type ServiceManager struct {
	// NotifySocket is the socket on which the manager receives the state of the service.
	NotifySocket string

	// Stores reports whether the manager keeps files for the service while it is down.
	Stores bool

	// ListenPID, ListenFDs and ListenNames describe the passed files.
	ListenPID, ListenFDs, ListenNames string
}

// Manager returns the service manager of the environment.
func Manager() ServiceManager {
	n, err := strconv.Atoi(os.Getenv("FDSTORE"))
	return ServiceManager{
		NotifySocket: os.Getenv("NOTIFY_SOCKET"), Stores: err == nil && n > 0,
		ListenPID: os.Getenv("LISTEN_PID"), ListenFDs: os.Getenv("LISTEN_FDS"), ListenNames: os.Getenv("LISTEN_FDNAMES"),
	}
}
