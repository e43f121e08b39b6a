// Package remote is the upstream registry client: it resolves references, reads manifests
// and small blobs, and fetches ranges of large ones for the store.
//
// # Hosts
//
// A reference names a host; hosts.toml says where the host is reached. The files have
// containerd's format and are read by containerd's own code: mirrors in order, then the
// server, each with capabilities, override_path, headers, CA and client certificates, and
// skip_verify only where asked. Unlike containerd, a file that is not understood is an error
// and not skipped. Hosts that are the facade of this daemon are left out, so that the daemon
// never asks itself. Plain HTTP is used for loopback hosts, as containerd does, and where
// hosts.toml says http.
//
// A manifest is one GET, never a HEAD, and there is no ping: the registry of Ollama knows
// neither. If no host gives it, and one says that it is overloaded or breaks off, all are asked again,
// four times in a quarter of a minute at most; a registry can ask for a pause of up to ten seconds. Its digest is that of the bytes of that answer. The media type is read from the
// body, since some registries answer text/plain. A host of Ollama gets the User-Agent of
// Ollama (it refuses others for some models) and is asked for manifest lists as well.
//
// # Blobs
//
// Blobs come over HTTP/1.1 (several connections of it are faster than one of HTTP/2) and are
// never decompressed: the digest is over the bytes as stored. The place a registry redirects
// a blob to is remembered until it fails. An answer that brings next to nothing for Options.Stall ends.
// Nothing read here is trusted; the store compares digests.
//
// # Dialects
//
// Options.Dialects are hosts that are no registries, and what answers for them. All that is said here of
// credentials, redirects and addresses holds for them as well: a Dialect stands where the registry would.
//
// # URLs
//
// Client.Do gets a plain URL, such as that of a file that is not in a registry, without
// credentials and without hosts.toml. Such a URL can come from a stranger: http and addresses
// that are not public are only for hosts of Options.AllowHosts and Options.NamedURLs.
//
// # Credentials
//
// Credentials of a caller go to the registry the reference names (the server of hosts.toml),
// never to its mirrors. Those of the node (the docker config and its helpers) go to the host they are
// stored for, in requests of the node itself (NodeRepository); in those of others only if
// Options.Shared says so. What hosts.toml gives goes with every request to its host, whoever asks.
// Redirects are followed by hand: when scheme, host or port
// changes, Authorization, cookies and the headers of hosts.toml stay behind and do not come
// back. A challenge is only followed to a realm on the same host, in the same registrable
// domain, on a host the operator allows, or elsewhere on public https.
//
// A body tells whether credentials were sent for it (transfer.Body): a password, a token that was
// got with one, a header of hosts.toml, the certificate of a client. A token that anybody gets is
// none. What a registry redirects to is as private as what it was asked with: the address may be
// signed. Headers of hosts.toml count unless it is known that they are harmless.
//
// # Addresses
//
// The hosts of the reference, of hosts.toml and of Options.AllowHosts may be anywhere. All
// other hosts (redirect targets, realms) come from a registry's answer: they are dialled only
// if the address is public, checked after name resolution at the moment of dialling. A host of
// the same name or registrable domain as a named one may be in a private network too, but
// never loopback, link-local or multicast. With an HTTP proxy the proxy resolves names;
// then only literal addresses and well-known internal names are caught.
package remote
