// Package modelname has the names by which the daemon and the commands call models: what users write, and how the
// store's references are called.
package modelname
