// Package serve runs the servers of the daemon, gRPC and HTTP, on unix sockets and TCP ports, until
// a context ends. Then they accept no new requests, and cut off those that take too long.
package serve
