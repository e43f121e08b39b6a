package wire_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
)

func TestText(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("size: %w", errdefs.ErrInvalidArgument), "size"},
		{fmt.Errorf("mount: %w", syscall.EINVAL), "mount: invalid argument"},
		{fmt.Errorf("mount: %w: %w", syscall.EINVAL, errdefs.ErrFailedPrecondition), "mount: invalid argument"},
		{fmt.Errorf("a: %w: %w", errdefs.ErrDataLoss, errdefs.ErrUnavailable), "a"},
		{errors.Join(fmt.Errorf("a: %w", errdefs.ErrNotImplemented), fmt.Errorf("b: %w", errdefs.ErrAborted)), "a\nb"},
		{fmt.Errorf("model x: %w", errdefs.ErrNotFound), "model x: not found"},
		{fmt.Errorf("x answered 404 Not Found: %w", errdefs.ErrNotFound), "x answered 404 Not Found"},
		{errdefs.ErrUnavailable, "unavailable"},
		{fmt.Errorf("mount: %w", &wire.Error{Code: "unknown", Message: "mount: invalid argument"}), "mount: mount: invalid argument"},
	} {
		if got := wire.Text(tt.err); got != tt.want {
			t.Errorf("Text(%v): got %q, want %q", tt.err, got, tt.want)
		}
		if got := wire.Wrap(tt.err).Message; got != tt.want {
			t.Errorf("Wrap(%v): got %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestAbout(t *testing.T) {
	const ref = "ghcr.io/a/b:v1"
	for _, text := range []string{"gone", ref + ": gone", ref + ": " + ref + ": gone"} {
		err := wire.About(ref, fmt.Errorf("%s%w", strings.TrimSuffix(text, "gone"), errdefs.ErrNotFound))
		if got, want := err.Error(), ref+": not found"; got != want || !errdefs.IsNotFound(err) {
			t.Errorf("About(%q): got %q, want %q", text, got, want)
		}
	}
}
