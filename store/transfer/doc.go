// Package transfer is the way in: where bytes come from, and who may have them brought when.
package transfer
