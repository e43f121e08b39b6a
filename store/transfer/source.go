package transfer

// A Source is a place that bytes come from, as somebody sees it. What a node has to share (places,
// buffers, unpackers, readers) is shared between sources, and bytes that nobody has verified are
// never those of two.
type Source struct {
	// Name says what place it is: "host/repository" for a registry, otherwise a name that no
	// registry can have.
	Name string

	// Who says with what kind of credentials it is read; empty for those of the node, or none.
	Who string

	Fetcher
}

// Key tells sources apart.
func (s Source) Key() string { return s.Name + " " + s.Who }

// A Body can tell how it was got. A body of a Fetcher that is none was got without credentials.
type Body interface {
	// Private says that credentials were sent to get the bytes: not everybody can have them.
	Private() bool
}

// IsPrivate says whether credentials were sent to get a body.
func IsPrivate(body any) bool {
	b, ok := body.(Body)
	return ok && b.Private()
}
