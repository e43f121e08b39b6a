package chart

import (
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	rbac "k8s.io/api/rbac/v1"
)

// TestLeaseRights: the controller may create its Lease, because not every tool that applies the chart creates it, and
// may change no other.
func TestLeaseRights(t *testing.T) {
	role := mustRender(t, map[string]any{"fleet": map[string]any{"enabled": true}})["Role/ballast-fleet"].Typed.(*rbac.Role)
	verbs := map[string][]string{} // by the names of Leases
	for _, r := range role.Rules {
		if slices.Contains(r.Resources, "leases") {
			verbs[strings.Join(r.ResourceNames, ",")] = r.Verbs
		}
	}
	if len(verbs) != 2 || !slices.Equal(verbs[""], []string{"create"}) || !slices.Equal(verbs["ballast-fleet"], []string{"get", "update"}) {
		t.Errorf("verbs by the names of Leases: %q", verbs)
	}
}

// TestControllerReplaced: a controller with ports of its node is ended before another one is started. Otherwise the new
// one is started first.
func TestControllerReplaced(t *testing.T) {
	for _, host := range []bool{false, true} {
		controller := map[string]any{"hostNetwork": host}
		d := mustRender(t, map[string]any{"fleet": map[string]any{"enabled": true, "controller": controller}})["Deployment/ballast-fleet"].Typed.(*apps.Deployment)
		update := d.Spec.Strategy.RollingUpdate
		if !host && update != nil || host && (update == nil || update.MaxSurge.String() != "0" || update.MaxUnavailable.String() != "1") {
			t.Errorf("hostNetwork %t: %+v", host, update)
		}
	}
}
