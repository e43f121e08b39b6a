// Package manualtest generates the manual of a command line from its commands: a section of a page in
// Markdown, and a man page. The texts are those of --help, so they are written in one place.
//
// The tests of the programs use it. "make docs" writes contrib/docs/commands.md, "make man" the man
// pages.
package manualtest
