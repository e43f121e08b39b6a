// Package upstream returns the configured registry client, resolver and signature rules: the same
// for the daemon and for the parts of the command line that work without it.
package upstream
