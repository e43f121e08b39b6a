// Package remote is the client for upstream registries: it resolves references, reads manifests and
// small blobs, fetches ranges of large blobs for the store, and pushes.
//
// # Hosts
//
// A reference names a host; hosts.toml configures how to reach it. The files have containerd's format
// and are read by containerd's code: mirrors in order, then the server, each with capabilities,
// override_path, headers, CA and client certificates, and skip_verify. Unlike in containerd, an invalid
// file is an error, and so is a key that containerd does not know. A registry to which hosts.toml gives no certificates
// has those that containerd finds without a hosts.toml (Options.CertsDirs): they are read where they are, after a
// certificate was refused, and every ten minutes. Hosts that are this daemon's facade are skipped. Plain HTTP is used
// for loopback hosts, as containerd does, and for http addresses in hosts.toml.
//
// This package says which hosts there are for a request, and transfer.Attempts chooses among them and remembers what
// they are like: for ranges, small blobs, blobs that pass through the facade, and documents (manifests, referrers,
// tags). Documents keep to the order and do not change it: a mirror without a tag is no worse for blobs.
//
// A manifest is one GET, and there is no ping: the registry of Ollama supports none. What was read before is one HEAD
// if it has not changed, as in containerd: Docker Hub and others count GETs alone. A host whose answer to HEAD says
// nothing is asked by GET from then on. If no host returns the manifest, and one is overloaded or breaks the
// connection, those are asked again, at most four times within 15 seconds; a registry can request a pause of up to ten
// seconds. A 429 to a request without credentials that requests none is not repeated (AnonymousLimit): an account may
// have a limit of its own. The digest is computed from the bytes of the response. The media type is read from the body,
// since some registries answer text/plain. Hosts in Options.Manners get special request headers, because some
// registries refuse models to unknown clients.
//
// # Blobs
//
// Each host is an endpoint of its own for the store (transfer.Spread), with its own failures, rate and blame, which
// outlive blobs and changes of hosts.toml. What a mirror gives is private unless the registry of the reference
// confirms that it gives the blob to everybody. Options.Peers are mirrors for the blobs of many registries, which give
// everybody what they have: they are asked only after that confirmation.
//
// Blobs are read over HTTP/1.1, because several connections are faster than one of HTTP/2, and without
// decompression, because digests cover the stored bytes. The redirect target of a blob is reused until
// it fails. A response that is too slow for Options.Stall ends; of a redirect or an error, what arrives in ten
// seconds is read. Nothing read here is trusted; the store compares digests.
//
// # Dialects and URLs
//
// A Dialect implements the registry API for a host that is not a registry. The rules below for
// credentials, redirects and addresses apply to it as to a registry. The address that it asks counts as a host of
// hosts.toml. When it refuses a request without credentials because of a limit, the repository's are used. A request
// for a manifest waits for a limit if its context has patience (WithPatience), up to an hour in all.
//
// Client.Do gets a plain URL, such as that of a file outside a registry, without credentials and without
// hosts.toml (except ca). Such URLs may be hostile: http and non-public addresses are allowed only for
// hosts of Options.AllowHosts and Options.NamedURLs.
//
// # Credentials
//
// Credentials of a caller are sent to the registry in the reference (the server of hosts.toml), never to
// its mirrors. Credentials of the node (docker config and credential helpers) are sent to the host they
// are stored for, in requests of the node itself (NodeRepository), and in other requests only if
// Options.Shared allows it. Credentials in hosts.toml are sent with every request to their host.
//
// Redirects are followed by this package: when scheme, host or port changes, Authorization, cookies and
// the headers of hosts.toml are dropped for the rest of the request. A challenge is followed only to a
// realm on the same host, in the same registrable domain, on a host that the operator allows, or
// elsewhere on public https.
//
// A body reports whether credentials were sent for it (transfer.Body): a password, a token obtained with
// one, a header of hosts.toml that is not known to be harmless, or a client certificate. An anonymous
// token does not count. A redirect target is as private as the request that led to it, because its
// address may be signed.
//
// # Addresses
//
// The hosts of references, hosts.toml and Options.AllowHosts may have any address. All other hosts
// (redirect targets, realms) are named by a registry: they are dialled only if their address is public,
// checked after name resolution, when dialling. A host with the same name or registrable domain as a
// configured one may also be in a private network, but never loopback, link-local or multicast. An HTTP
// proxy resolves names itself; then only literal addresses and well-known internal names are refused.
//
// # oras-go
//
// The credential stores are those of oras-go v2.6.4. Its registry/remote.Repository does not make this package smaller:
//
//   - Pushes (Push, Mount, PushReference), with a Client that adds the address in hosts.toml, authorization, limits and
//     errors, pass all tests, in 480 lines instead of the 475 of push.go and attach.go; 124 are the Client. It splits the
//     PUT of a blob of unknown digest, for which Push has no other way, into PATCH and PUT, and sets the Content-Type of
//     the list under the fallback tag, because PushReference drops the referrers in a list of another type.
//   - Referrers decodes a whole page: a list of 7.5 MB takes 795 MiB, where TestReferrersMemory allows 100. It takes any
//     Content-Type but that of an index for a missing API, reads no fallback tag after 400, and fails if the address of the
//     next page has another host.
//   - Tags saves 12 lines, about as many as the Client gets for it, and has errors without a category.
//   - oras.Copy reads a blob in one stream from one host, and only the registry compares its digest, when it has all of it.
package remote
