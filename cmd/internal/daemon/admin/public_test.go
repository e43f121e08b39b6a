package admin_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
)

// TestResolveRoutes: users see where a public model is mounted, if they can enter that directory and it is mounted by
// the name that they give.
func TestResolveRoutes(t *testing.T) {
	r := newRig(t)
	const private = "reg.example/team/private:v1"
	im := r.image
	im.Refs, im.PrivateNames = []string{testRef, private}, []string{"reg.example/team/private"}
	if err := r.store.PutImage(im); err != nil {
		t.Fatal(err)
	}
	var mounts []wire.Mount
	r.handler.Mounts = fakeMounts{list: &mounts}
	r.handler.Models = "/var/lib/ballast/models"
	users := serve(t, r.handler.ResolveRoutes(func(context.Context) uint32 { return 1000 }))
	mount := func(name, dir string) wire.Mount {
		return wire.Mount{Name: name, Dir: dir, Table: im.Table, Mounted: true}
	}
	other := mount(testRef, "/srv/other")
	other.Table = im.Manifest
	gone := mount(testRef, "/srv/gone")
	gone.Mounted = false
	public := mount(testRef, "/srv/public")
	for _, tt := range []struct {
		name   string
		mounts []wire.Mount
		want   string // directory; empty: not found
	}{
		{testRef, nil, ""},
		{testRef, []wire.Mount{public}, "/srv/public"},
		{testRef, []wire.Mount{mount(testRef, r.handler.Models+"/m"), gone, other, mount(private, "/srv/private"), mount(im.Manifest.String(), "/srv/digest")}, ""},
		{testRef, []wire.Mount{mount(private, "/srv/private"), public}, "/srv/public"},
		{private, []wire.Mount{mount(private, "/srv/private"), public}, ""},
		{"reg.example/team/none:v1", []wire.Mount{public}, ""},
	} {
		mounts = tt.mounts
		got, err := users.Resolve(t.Context(), tt.name)
		if got.Path != tt.want || (tt.want == "") != errdefs.IsNotFound(err) {
			t.Errorf("%s of %v: %q, %v; want %q", tt.name, tt.mounts, got.Path, err, tt.want)
		}
	}
	if _, err := users.Images(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("list the images: %v", err)
	}
}

// TestResolveRate: a user who asks too often is refused, and no other.
func TestResolveRate(t *testing.T) {
	r := newRig(t)
	var uid atomic.Uint32
	users := serve(t, r.handler.ResolveRoutes(func(context.Context) uint32 { return uid.Load() }))
	for i := 0; ; i++ {
		if _, err := users.Resolve(t.Context(), "reg.example/team/none:v1"); errdefs.IsUnavailable(err) {
			break
		}
		if i == 100_000 {
			t.Fatalf("%d requests are answered", i)
		}
	}
	uid.Add(1)
	if _, err := users.Resolve(t.Context(), "reg.example/team/none:v1"); !errdefs.IsNotFound(err) {
		t.Errorf("another user: %v", err)
	}
}
