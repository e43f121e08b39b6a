// Package translate makes what goes over the wire from what the engine has. It is the only package that knows both: a
// change of the engine's types changes no answer unless it is changed here.
package translate
