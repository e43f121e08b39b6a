package main

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// TestRefresh refuses an interval without which all agents would ask all the time.
func TestRefresh(t *testing.T) {
	c := root(io.Discard)
	c.SetArgs([]string{"agent", "--refresh=0"})
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--refresh") {
		t.Errorf("got %v", err)
	}
}

// noCluster returns a file with the address of an API server that does not answer.
func noCluster(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config")
	config := `{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}], "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestRequests: the client of the controller has no limit of its own, those of agents have the usual one.
func TestRequests(t *testing.T) {
	a := &app{kubeconfig: noCluster(t), log: slog.New(slog.DiscardHandler)}
	for want, o := range map[float32]manager.Options{-1: {LeaderElection: true, LeaderElectionID: "x", LeaderElectionNamespace: "x"}, 0: {}} {
		mgr, err := a.manager(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := mgr.GetConfig().QPS; got != want {
			t.Errorf("elected %t: %v requests per second, want %v", o.LeaderElection, got, want)
		}
	}
}
