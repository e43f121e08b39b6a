package config

import (
	"os"
	"strconv"
)

// A ServiceManager is what the environment says about who started the process.
// https://www.freedesktop.org/software/systemd/man/257/sd_listen_fds.html
type ServiceManager struct {
	// NotifySocket is where the manager wants to be told of the state of the service.
	NotifySocket string

	// Stores says that the manager keeps files for the service while it is down.
	Stores bool

	// ListenPID, ListenFDs and ListenNames describe the files that it hands over.
	ListenPID, ListenFDs, ListenNames string
}

// Manager reads the environment.
func Manager() ServiceManager {
	n, err := strconv.Atoi(os.Getenv("FDSTORE"))
	return ServiceManager{
		NotifySocket: os.Getenv("NOTIFY_SOCKET"), Stores: err == nil && n > 0,
		ListenPID: os.Getenv("LISTEN_PID"), ListenFDs: os.Getenv("LISTEN_FDS"), ListenNames: os.Getenv("LISTEN_FDNAMES"),
	}
}
