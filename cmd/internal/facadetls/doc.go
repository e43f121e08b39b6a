// Package facadetls keeps the keys by which containerd and the facade know each other: a CA of the
// node, a certificate for the facade and one for containerd.
//
// Nobody without the key of the client can ask the facade, and nobody without a key that the CA has
// signed can answer in its place, whoever has bound the port.
//
// # Files
//
//	<root>/tls/               0700
//	  authority.pem           0600  certificate of the CA, and its key
//	  ca.pem                  0644  certificate of the CA alone: "ca" of hosts.toml
//	  client.pem              0600  certificate of containerd, and its key: "client" of hosts.toml
//
// hosts.toml names the last two, and containerd reads them for every pull, so their content can change
// at any time. A certificate and its key are one file, which is replaced as a whole (temporary name,
// fsync, rename, fsync of the directory): no reader sees a pair that does not fit. ca.pem is written
// from authority.pem whenever it says something else. The certificate of the facade is in no file: it is
// made anew by each daemon.
//
// # Renewal
//
// Renew looks at the files and makes what is missing, damaged or about to end:
//
//	authority.pem   ends in 30 years   made anew if it is gone, damaged, or ends before a new leaf would
//	ca.pem                             written from authority.pem
//	client.pem      ends in 90 days    signed anew 30 days ahead, or if authority.pem has not signed it
//	facade          ends in 90 days    the same, in memory
//
// A daemon does so when it starts and then once a minute: a clock that is wrong at boot, or a file that
// somebody has removed, costs no more than that. A key that others than its owner could read counts as
// lost together with the CA. A new CA needs nothing to be written anew; a pull that began before and
// connects after it fails once. All certificates begin in 1970, because the clocks of some machines do so
// at boot; what counts is their end.
//
// Rotate makes a new CA at once. Connections that were made by the old one are not served any more:
// Verify.
//
// # Locks
//
// Keys.writing lets one at a time look at the files and change them. Readers of the current certificates
// take no lock.
package facadetls
