// Package local opens files and directories of this machine that other users can replace at any
// moment, without waiting and without leaving a directory.
//
// A name can be replaced by a link, a pipe or a device between a look at it and its opening. So
// nothing is decided by a name: everything below a directory is opened through an os.Root, which
// follows no link out of it, and with O_NONBLOCK, since opening a pipe would wait for a writer; what
// was opened is then examined through its descriptor.
package local
