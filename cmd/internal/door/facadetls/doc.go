// Package facadetls manages the keys with which containerd and the facade authenticate each other:
// a CA of the node, a certificate for the facade and one for containerd.
//
// Without the key of the client, no process can use the facade, and without a key signed by the CA,
// no process can answer in its place, even if it has bound the port.
//
// # Files
//
//	<root>/tls/               0700
//	  authority.pem           0600  certificate of the CA, and its key
//	  ca.pem                  0644  certificate of the CA alone: "ca" of hosts.toml
//	  client.pem              0600  certificate of containerd, and its key: "client" of hosts.toml
//
// hosts.toml names the last two, and containerd reads them for every pull, so their content can
// change at any time. A certificate and its key are in one file, which is replaced as a whole
// (temporary name, fsync, rename, fsync of the directory): no reader sees a pair that does not
// match. ca.pem is written from authority.pem whenever it differs. The certificate of the facade is
// in no file: each daemon creates a new one.
//
// # Renewal
//
// Renew checks the files and creates those that are missing, damaged or about to expire:
//
//	authority.pem   expires after 30 years   replaced if missing, damaged, or expiring before a new leaf would
//	ca.pem                                   written from authority.pem
//	client.pem      expires after 90 days    replaced 30 days before, or if authority.pem has not signed it
//	facade          expires after 90 days    the same, in memory
//
// A daemon does so when it starts, then once a minute, and when it is asked for its health ("ballast
// doctor"): the effect of a wrong clock at boot, or of a removed file, ends after a minute. Check
// tells other programs whether there is such an effect. A CA that cannot be read, as without a free descriptor,
// is not replaced: what is valid stays so until the next check. A key that users other than its owner could read counts
// as lost, together with the CA. After a new CA, no other file has to be written; a pull that began
// before and connects after it fails once. All certificates begin in 1970, because some clocks do
// at boot; only their end matters.
//
// Rotate creates a new CA at once. Connections authenticated by the old one are no longer served:
// Verify.
//
// # Locks
//
// Keys.writing serializes checks and changes of the files. Readers of the current certificates take
// no lock.
package facadetls
