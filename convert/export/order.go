package export

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// created is RFC 3339 with a fixed number of digits: later times are greater as texts.
const created = "2006-01-02T15:04:05.000000000Z07:00"

// AttachOrder writes the order in which an image is first read as a referrer of its manifest. Nodes use the latest one.
func AttachOrder(ctx context.Context, dst Target, manifest ocispec.Descriptor, o filetable.Order) error {
	p, err := o.Encode()
	if err != nil {
		return err
	}
	err = (&writer{dst: dst}).attach(ctx, manifest, mediatype.Order, p, map[string]string{
		ocispec.AnnotationCreated: time.Now().UTC().Format(created),
	})
	if err != nil {
		return fmt.Errorf("order of reads: %w", err)
	}
	return nil
}
