// Package fleet lets nodes ask each other what they made a converted image of.
//
//	GET /v1/origins/<digest>   200 registry.Hint, 404
//
// An answer is two digests. Nobody believes it: who asked reads the origin from its registry, with the credentials
// of who wants the model, converts it, and compares the digest. So a node that lies costs a few requests, and one
// that is asked gives nothing away but which digest belongs to which.
//
// Both sides show certificates of one CA, which the operator makes for the nodes; they are read again for each
// connection, so that they can be renewed. Node names a node, or a name with the addresses of many, such as
// that of a headless service: a few of all addresses are asked at the same time, in random order, and the
// certificate has to be for the name.
package fleet
