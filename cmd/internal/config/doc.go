// Package config turns file, drop-ins and environment into one Config.
//
// The file is TOML, /etc/ballast/config.toml by default, followed by every *.toml file of the
// directory conf.d beside it in the order of their names. A key in a later file replaces the
// same key of an earlier one; lists are replaced, not appended. Each file starts with
// "version = 1". A key that is not known is an error that names file, line and key, because a
// misspelt key that is ignored is a setting that silently does not hold. The default file may
// be missing; a file that was asked for by name may not.
//
// Sizes are written as "16MiB" (powers of two) or "500GB" (powers of ten), durations as "5m",
// shares as "85%".
//
// This is the only package of the program that reads the environment:
//
//	BALLAST_CONFIG      the configuration file, where no flag names one
//	BALLAST_ADMIN       the admin socket that the command line talks to
//	CONTAINERD_ADDRESS  the socket of containerd, if the file does not give it
//	DOCKER_CONFIG       the directory of Docker's config.json, if the file does not give it
//
// Comments of Config's fields are what "ballastd config dump" prints; a golden file holds the
// printed default.
package config
