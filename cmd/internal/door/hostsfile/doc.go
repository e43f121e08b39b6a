// Package hostsfile finds out which hosts.toml files of closed registries other programs have replaced, and which
// programs those are. Without such a file, models of its registry arrive unconverted.
//
// The files are those of facade.closed in the configuration. "ballast setup" writes that list after the files, and
// takes it away before it changes them. So others have changed a file that is not as it is listed, at any time, also
// after a crash of a set-up.
package hostsfile
