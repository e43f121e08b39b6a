package remote_test

import (
	"net/http"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// TestReach asks registries once: any answer is well but that of a proxy or a registry that is broken, and no credentials
// are sent.
func TestReach(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		status int
		is     func(error) bool // nil: it answers
	}{
		{"wants a token", http.StatusUnauthorized, nil},
		{"does not have the path", http.StatusNotFound, nil},
		{"is broken", http.StatusBadGateway, errdefs.IsUnavailable},
	} {
		u := newUpstream(t)
		u.Before(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(tt.status); return true })
		c := newClient(t, remote.Options{
			HostsDir: hostsDir(t, "registry.example", "server = \""+u.URL+"\"\n[header]\nx-key = \""+secret+"\"\n"),
			Credentials: func(string, string) (remote.Credentials, error) {
				return remote.Credentials{Username: "alice", Secret: secret}, nil
			},
			Shared: remote.AnyHost,
		})
		switch err := c.Reach(t.Context(), "registry.example"); {
		case tt.is == nil && err != nil, tt.is != nil && !tt.is(err):
			t.Errorf("%s: %v", tt.name, err)
		}
		all := u.Requests()
		if len(all) != 1 || all[0].URL.Path != "/v2/" || all[0].Header.Get("Authorization") != "" || all[0].Header.Get("X-Key") != "" {
			t.Errorf("%s: requests %+v", tt.name, all)
		}
	}
	mustRefuse(t, newClient(t, remote.Options{}).Reach(t.Context(), "../x"), errdefs.IsInvalidArgument, "not well-formed")
	_, host, _ := newCertified(t)
	mustRefuse(t, newClient(t, remote.Options{}).Reach(t.Context(), host), errdefs.IsFailedPrecondition, "certificate")
	offline := newClient(t, remote.Options{Offline: func(string) bool { return true }})
	if err := offline.Reach(t.Context(), host); err != nil {
		t.Errorf("a registry that is never asked: %v", err)
	}
}
