// Package fleet lets nodes ask each other for the origin of a converted image.
//
//	GET /v1/origins/<digest>   200 registry.Hint, 404
//
// An answer is two digests. It is not trusted: the asking node reads the origin from its registry,
// with the credentials of the client that requested the model, converts it, and compares the
// digest. So a wrong answer costs a few requests, and an answer reveals only which digest belongs
// to which.
//
// Both sides authenticate with certificates of one CA, which the operator creates for the nodes;
// they are read for each connection, so that they can be renewed. Node names a node, or a name with
// the addresses of many, such as that of a headless service: a few of all addresses are asked at
// the same time, in random order, and the certificate must be for the name.
package fleet
