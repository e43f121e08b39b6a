// Package plan decides what agents and the controller do. Its functions have no clients, clocks or state.
package plan
