// Package config reads files, drop-ins and the environment into one Config.
//
// The file is TOML, /etc/ballast/config.toml by default, followed by every *.toml file of the
// directory conf.d beside it, in the order of their names. A key in a later file replaces the same
// key of an earlier one; lists are replaced, not appended. Each file starts with "version = 1". An
// unknown key is an error that names file, line and key, because ignoring a misspelt key would
// silently drop a setting. The default file may be missing; a file given by name may not.
//
// Sizes are written as "16MiB" (powers of two) or "500GB" (powers of ten), durations as "5m",
// shares as "85%".
//
// This is the only package of the program that reads the environment:
//
//	BALLAST_CONFIG      the configuration file, unless a flag names one
//	BALLAST_ADMIN       the admin socket that the command line uses
//	CONTAINERD_ADDRESS  the socket of containerd, unless the file has it
//	DOCKER_CONFIG       the directory of Docker's config.json, unless the file has it
//
// Comments of Config's fields are what "ballastd config dump" prints; a golden file holds the
// printed default.
package config
