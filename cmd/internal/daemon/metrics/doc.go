// Package metrics defines all metrics of the daemon and the values of their labels.
//
// No label has a digest, a path, a reference or text from outside as its value, so the number of
// values of a label is bounded.
package metrics
