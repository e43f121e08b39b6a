package transfer

import "io"

// Mark returns body as a Body that is private or not, whatever it said before.
func Mark(body io.ReadCloser, private bool) io.ReadCloser { return markedBody{body, private} }

type markedBody struct {
	io.ReadCloser
	private bool
}

// Private implements Body.
func (b markedBody) Private() bool { return b.private }
