package carton

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
)

// acceptEncoding are the supported codings.
const acceptEncoding = "zstd, gzip, br, deflate"

// maxCodings limits the nested codings.
const maxCodings = 3

// codings returns the codings of a Content-Encoding in the order in which they were applied.
// https://www.rfc-editor.org/rfc/rfc9110#name-content-encoding
func codings(header []string) ([]string, error) {
	var all []string
	for _, c := range strings.Split(strings.Join(header, ","), ",") {
		switch c = strings.ToLower(strings.TrimSpace(c)); c {
		case "", "identity":
			continue
		case "x-gzip":
			c = "gzip"
		case "zstd", "gzip", "br", "deflate":
		default:
			return nil, fmt.Errorf("unknown Content-Encoding %.50q: %w", c, errdefs.ErrNotImplemented)
		}
		if all = append(all, c); len(all) > maxCodings {
			return nil, invalid("more than %d codings", maxCodings)
		}
	}
	return all, nil
}

// decode returns body without its codings. Close closes body too.
func decode(body io.ReadCloser, codings []string) (io.ReadCloser, error) {
	d := &decoded{Reader: body, closers: []io.Closer{body}}
	for _, coding := range slices.Backward(codings) {
		r, err := decoder(d.Reader, coding)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("Content-Encoding %s: %w", coding, err)
		}
		d.Reader, d.closers = r, append(d.closers, r)
	}
	return d, nil
}

type decoded struct {
	io.Reader
	closers []io.Closer // body first
}

func (d *decoded) Close() (err error) {
	for _, c := range slices.Backward(d.closers) {
		err = c.Close() // that of body counts: decoders only free memory
	}
	return err
}

// decoder returns r without one coding.
func decoder(r io.Reader, coding string) (io.ReadCloser, error) {
	switch coding {
	case "gzip":
		return gzip.NewReader(r)
	case "zstd":
		return zipdir.NewZstd(r)
	case "br":
		return io.NopCloser(brotli.NewReader(r)), nil
	case "deflate":
		return inflater(r)
	}
	panic("carton: internal error: coding " + coding)
}

// inflater returns r without the coding that HTTP calls deflate: the zlib format. Some servers send
// it without the zlib header.
// https://www.rfc-editor.org/rfc/rfc9110#name-deflate-coding
func inflater(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(2)
	if err != nil {
		return nil, err
	}
	const method = 8
	if head[0]&0x0f == method && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}
