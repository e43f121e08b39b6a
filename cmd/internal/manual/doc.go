// Package manual writes the manual of a command line from its commands: a section of a page in
// Markdown, and a man page. The texts are those of --help, so there is one place to write them.
//
// The tests of the programs call it. "make docs" writes contrib/docs/commands.md, "make man" the man pages.
package manual
