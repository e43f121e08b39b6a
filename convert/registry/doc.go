// Package registry is the facade: a registry on loopback that containerd uses as a mirror of the
// upstream registry, and that answers the tag of a model with an ordinary image.
//
//	GET  /v2/                                     200
//	GET  /v2/<repository>/manifests/<tag>         resolved upstream, converted if it is a model
//	GET  /v2/<repository>/manifests/<digest>      converted here, or upstream's if it can be mounted
//	GET  /v2/<repository>/blobs/<digest>          made here, or upstream's
//	GET, POST  /token                             a token for the credentials of a pull, or for none
//
// HEAD returns the same without a body. The upstream host is in the query parameter ns, as containerd
// sends it to a mirror, or is the first component of the repository. Package resolve classifies and
// builds; this package checks access to an image, keeps it, and serves HTTP.
//
// # Manifests by tag
//
// A tag is one GET upstream, or one HEAD if it has not changed. A manifest that is not a model passes unchanged. A
// model is parsed, built into an image, and kept in the store by the digest of its origin, so that it is converted
// once. Concurrent requests for the same origin at the same place with the same credentials share one conversion, which
// continues if a caller goes away, and a stalling registry delays no other.
//
// An index of models becomes an index of converted images. It is reused as long as its models are here and were read
// by the same name. Entries are classified by their descriptors; only those with neither an artifact type nor a
// platform are read. Images converted before they were pushed are built again from their tables, with the same bytes
// unless somebody has changed them; an index of such images stays as it is. An index in an index is refused.
// containerd's own code says which entry containerd takes (resolve.Entries).
//
// # Manifests by digest
//
// containerd compares what it gets with the digest that it asked for, so a digest is never answered
// with another manifest. In this order:
//
//  1. The digest of an image that is kept here, converted or restored: that image, if the caller may
//     read it (Access).
//  2. A digest of a host in Handler.Archives: its tag is needed; there is no registry to ask.
//  3. What upstream has by the digest. What is not a model passes unchanged, and so does an image that was converted
//     before it was pushed, if the signature rules allow its bytes. A model is converted; its original manifest is then served only if containerd
//     can mount the original: it unpacks all layers itself, or the model is bare, and the snapshotter
//     shows it (Made, Origin). The same holds for an index if containerd picks such a model from it.
//     Otherwise the answer is a PinError with the converted digest. That a caller with credentials has
//     read it is recorded (store.Image.Read), because the request of the snapshotter has none.
//  4. What upstream does not have can be a converted digest whose tag was never resolved here. Its
//     origin is looked for by the last tags of the repository, after a search in vain once a minute for
//     everybody, and once more for each caller where not everybody can read them; see find.
//     A candidate is read with the credentials of the caller and converted here, and counts if it
//     gives the digest.
//
// A manifest that was served under 3 is remembered for a short time for its caller, because containerd
// asks with HEAD and then with GET.
//
// # Variants
//
// One variant of a list of variants is converted: that of Handler.Variant, or of the tag. A tag such as
// 27b-mlx that does not exist upstream selects the variant mlx of the list 27b. The origin is the list
// and the variant.
//
// # Archives
//
// An archive (format.Archive) is a layer of an artifact, or is at a URL. Handler.Archives maps the
// references of a host to URLs; no registry is used for them. The origin of an archive at a URL is the
// identity that the archive declares; it is read again when a tag is requested, but at most once a
// minute. File sizes come from the archive that was read, so an image is not looked up by its origin.
//
// Files of archives are blobs of the image that no registry has. They are fetched from the archive,
// which stays open after the conversion and is opened again when needed, and are also served to clients
// that fetch blobs themselves. At most 8 archives stay open, each for ten minutes after its last use; an
// archive from a server without ranges is a copy on disk during that time.
//
// # Imports
//
// An Import takes over the models of an archive, or of an Ollama, on this machine: files first, and records only when
// all of them are objects. A tag whose registry does not answer (errdefs.ErrUnavailable) is answered with the image
// that was imported by this name, if the name is not private; the registry wins whenever it answers. The operator
// decides that an import is public. A record of an import stays until the reference names another image.
//
// # Sources
//
// An image can have been resolved from many names, by any caller. Handler.Sources uses only the names
// by which the caller pulls the image.
//
// # Access
//
// The facade has no access rules of its own: a caller that can read an origin can read its image. A request without
// credentials to a registry that is known to ask for some gets a challenge, before upstream is asked, and so does one
// for something that upstream refuses or hides, with whatever status (401, 403, 404, 429): it makes containerd send
// what it has, a password, an identity token, or nothing. Who has nothing then gets the text of upstream. The token is
// the credentials, encrypted with a key of this process, for one host and five minutes. Upstream is asked with the
// credentials of the caller first, because limits are those of an account, and without them if it refuses them. One
// more HEAD without them says whether everybody may have the model. A 429 to a request without credentials is not
// repeated. Only hosts that are not registries are asked without credentials first, unless they refused that within the
// last minute; a request after the challenge waits for their limits (remote.WithPatience). The secret is used for that
// host and repository only, and kept for fetching blobs later (package pullsecret). It is dropped when the repository
// is readable without it, unless a snapshot needs it. Blobs are also requested without it, because it can expire.
//
// The credentials of the node are for Convert and NodeSources, which no HTTP request reaches. A name
// that needed them is as private as one that needed a pull secret.
//
// Each image records the names (host/repository) by which its origin needed credentials. By these names, and by names
// it was never resolved from, its manifest and blobs are served only to callers that can read the origin there; the
// result is cached for a minute. By its other names they are public. If there is no such name, a name it was never
// resolved from does not know it: its repository must have the documents, and not only the manifest. A registry that
// serves the same bytes publicly therefore makes only its own name public. For the same reason Handler.Sources uses
// only the names by which the caller pulls, not all recorded ones.
//
// # Signatures
//
// Handler.Signatures, if set, is asked in one place, admit, before a manifest is served and by Convert; an Import
// asks it itself. A refusal is a 403 with the reason. Signatures are looked up in the repository being pulled from,
// with credentials that work there. A signed model says nothing about other layers of its image, other entries of its
// index, or a config by which containerd unpacks it: for bytes of others to be answered, a signature of their
// manifest is needed as well (admitBytes). Admit is for the differ, which knows a table and the images found here to
// have it.
//
// # Limits
//
// Requests use memory for their documents from a budget for each registry and one for all (budget.go),
// until the conversion that they started ends. A request that waits for more memory gives back what it
// has, and gets 429 after two minutes, or at once if too many documents wait. A request that waits for
// the conversion of another holds neither documents nor memory. A registry that stalls, or serves the
// largest manifests, therefore delays only its own requests. A large manifest must arrive in a minute.
//
// The manifests of the models of an index have a common limit. Unused images are removed for new ones
// of their registry (store.TrimImages); recent ones stay, and a new one is refused. An error names its
// limit, and Handler.Refused counts it.
//
// # Errors
//
// Errors have the format of the distribution specification. containerd first sends HEAD, and shows the
// text of an error only for status 403. Errors of manifests requested through hosts.toml are therefore
// a 403 with the cause and what to do, except 401, 404 and 429, which containerd acts upon. Other
// clients get the actual status. A request sent by ballast itself is refused with 508.
package registry
