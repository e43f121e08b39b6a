// Package registry is the facade: a registry on loopback that containerd asks instead of the
// upstream registry, and that answers the tag of a model with an ordinary image.
//
//	GET  /v2/                                     200
//	GET  /v2/<repository>/manifests/<tag>         resolved upstream, converted if it is a model
//	GET  /v2/<repository>/manifests/<digest>      ours, or upstream's if containerd can mount it
//	GET  /v2/<repository>/blobs/<digest>          ours, or upstream's as it is
//
// HEAD answers the same without a body. The upstream host is in the query parameter ns, as
// containerd sends it to a mirror, or is the first component of the repository.
//
// # Manifests
//
// A tag is one GET upstream. What is no model passes byte for byte. A model is parsed, built
// into an image, and kept in the store by the digest of its origin, so that the next request
// for it converts nothing. What a reference stands for, and what is made of it, is package resolve's; here are
// who may have it, what is kept, and HTTP. Those who ask for an origin at the same place with the same
// credentials wait for one conversion, which goes on when the one who asked goes away; a registry
// that stalls holds up nobody else. An index of models becomes an index of converted images, which is kept as well: it answers as
// long as its models are here and were read by the same name. Entries of
// an index are looked at by what their descriptors say; only those with neither a type of
// artifact nor a platform are read. Those that were converted ahead of time stay as they are, and so does an
// index of them. An index in an index is refused.
//
// By digest there are the manifests made here, those upstream that are not models, and of models upstream those
// that can be mounted as they are (asItIs): containerd compares the digest of our answer. Of a bare model it unpacks
// nothing, and the snapshotter shows it; then Origin says by which names it may be shown to who has no
// credentials to show. Any other is refused with the digest to pin instead. That ends the pull: HEAD is
// answered without a length, after which containerd sends GET, and does not go on to another host if that is refused.
//
// A digest that neither this node nor upstream knows may be what another node made of a model (find). Handler.Hints
// says of which; otherwise the tags of the repository are looked through, a bounded number, and not more than
// once a minute for each who asks. Either way the origin is read with the credentials of who asks, and converted
// here: as that is a pure function, nobody has to be believed.
//
// # Lists of Ollama
//
// Of a manifest list the model for one runner is converted: that of Handler.OllamaRunner, or of
// the tag. A tag such as 27b-mlx that upstream does not have is the model for mlx in the list 27b.
// The origin is the list and the runner.
//
// # Cartons
//
// A carton is a layer of an artifact, or is at a URL. Handler.Cartons maps the references of a
// host to URLs; no registry is asked for them. The origin of a carton at a URL is its model hash,
// which is read again when a tag is asked for, but not more than once a minute. The sizes of files
// are those of the archive at hand, so an image is not looked up by the model hash.
//
// Files of cartons are blobs of the image that no registry has: they are fetched from the carton,
// which is opened again when it is needed, and answered here to clients that fetch blobs by
// themselves. At most 8 cartons stay open, each for ten minutes after its last use; a carton from a
// server without ranges is a copy on the disk until then.
//
// # Sources
//
// An image can have been resolved from many names, by whomever. Handler.Sources brings its blobs from
// those that the caller says it is pulled by, and from no other.
//
// # Access
//
// The facade has no access rules of its own: who can read an origin can read what was made of
// it. Upstream is asked without credentials of the caller first. If it refuses, so does the
// facade, with a challenge for Basic, which makes containerd send the pull secret; that is then
// used for that host and repository only, and kept to fetch blobs later (package pullsecret). It is
// forgotten when the repository can be read without it, unless a snapshot needs it, and blobs are then
// asked for without it too: it can have expired.
//
// The node's own credentials are for Convert and NodeSources, which nobody reaches by a request here.
// Where they were needed a name is as private as one that needed a pull secret.
//
// Each image has the names (host/repository) by which its origin needed credentials. By
// these, and by names it was never resolved from, its manifest and blobs by digest are given to
// those who can read the origin there, which is remembered for a minute. By another name that
// it was resolved from everybody gets them. So a registry that serves the same bytes to everybody
// makes nothing public but its own name.
//
// # Signatures
//
// Handler.Signatures, if it is set, is asked before a manifest is answered, and by Convert and
// ConvertLocal: admit is the one place. What it does not let pass is a 403 that says why. Signatures are
// looked for in the repository that is pulled from, with the credentials that are known to work there. That a
// model is signed says nothing of other layers of its image, nor of other entries of its index: such a manifest is
// checked as well. Admit is for who shows a model: it knows a table, and which images were found here to have it.
//
// # Limits
//
// Requests take memory by the size of their documents, from a budget for each registry and one for all
// (budget.go), and keep it until the conversion is over that they began. Who has to wait for more gives
// back what it has, and after two minutes gets 429; at once, if too many wait with documents. Who waits for the
// conversion of another has neither documents nor memory. So a registry that stalls, or serves the largest
// manifests there can be, holds up its own. A large manifest has a minute to arrive.
//
// An index has a limit for the manifests of its models together. Images that nobody pulls make room for
// others of their registry (store.TrimImages); what was resolved just now stays, and a new one is refused.
//
// A refusal names its limit, and Handler.Refused counts it.
//
// # Errors
//
// Errors have the format of the distribution specification. containerd asks with HEAD first
// and shows the text of an answer only for status 403. So all errors of manifests that are asked for through
// hosts.toml are a 403, with the cause in words and what helps, but for 401, 404, and the 429 of our own
// limit: containerd acts upon them. Who asks otherwise gets the status that it is.
//
// A request that a client of ours has sent is refused with 508.
package registry
