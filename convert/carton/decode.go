package carton

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
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
	d := &decoded{Reader: body, closers: []func(){func() { body.Close() }}}
	for i := len(codings) - 1; i >= 0; i-- {
		if err := d.add(codings[i]); err != nil {
			d.Close()
			return nil, fmt.Errorf("Content-Encoding %s: %w", codings[i], err)
		}
	}
	return d, nil
}

type decoded struct {
	io.Reader
	closers []func()
}

func (d *decoded) add(coding string) error {
	switch coding {
	case "gzip":
		r, err := gzip.NewReader(d.Reader)
		if err != nil {
			return err
		}
		d.push(r, func() { r.Close() })
	case "zstd":
		r, err := zstd.NewReader(d.Reader, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zipdir.MaxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		d.push(r, r.Close)
	case "br":
		d.push(brotli.NewReader(d.Reader), func() {})
	case "deflate":
		return d.addDeflate()
	default:
		panic("carton: internal error: coding " + coding)
	}
	return nil
}

// addDeflate adds the coding that HTTP calls deflate: the zlib format. Some servers send it without
// the zlib header.
// https://www.rfc-editor.org/rfc/rfc9110#name-deflate-coding
func (d *decoded) addDeflate() error {
	b := bufio.NewReader(d.Reader)
	head, err := b.Peek(2)
	if err != nil {
		return err
	}
	const method = 8
	if head[0]&0x0f == method && (int(head[0])<<8|int(head[1]))%31 == 0 {
		r, err := zlib.NewReader(b)
		if err != nil {
			return err
		}
		d.push(r, func() { r.Close() })
		return nil
	}
	r := flate.NewReader(b)
	d.push(r, func() { r.Close() })
	return nil
}

func (d *decoded) push(r io.Reader, closer func()) {
	d.Reader = r
	d.closers = append(d.closers, closer)
}

func (d *decoded) Close() error {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
	d.closers = nil
	return nil
}
