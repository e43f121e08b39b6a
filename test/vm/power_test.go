//go:build vm

package vm

import (
	"fmt"
	"testing"
)

// cuts cuts the power n times in the middle of pulls, at another point each time, and starts the machine with one
// kernel after the other. Afterwards everything that was pulled is complete and right, without help.
func (m *machine) cuts(t *testing.T, n int, kernels ...string) {
	t.Helper()
	for i := range n {
		kernel := kernels[i%len(kernels)]
		m.journey(t, fmt.Sprintf("power cut %d", i+1), func(t *testing.T) { m.powerCut(t, i, n, kernel) })
	}
}

func (m *machine) powerCut(t *testing.T, i, n int, kernel string) {
	t.Helper()
	r := m.registries
	var models []model
	var total int64
	for k := range 2 {
		name, seed := fmt.Sprintf("library/cut%d-model%d", i, k), byte(100+4*i+2*k)
		models = append(models, r.pushOllama(t, name, "1b", weights(seed, 24<<20)), r.pushConverted(t, name, weights(seed+1, 24<<20)))
	}
	script := ""
	for _, want := range models {
		total += want.size
		script += "systemd-run --quiet ctr images pull --snapshotter ballast --hosts-dir /etc/containerd/certs.d " + want.ref + "\n"
	}
	r.forget()
	m.sh(t, script)
	// From a little after the start to the end, when files are being synced and renamed.
	at := total * int64(2*i+1) / int64(2*n)
	eventually(t, "bytes of the models", func() error {
		if got := r.sent(); got < at {
			return fmt.Errorf("%d of %d", got, at)
		}
		return nil
	})
	m.cut()
	t.Logf("cut after %d of %d bytes", r.sent(), total)
	m.boot(t, kernel, nil)
	m.healthy(t)
	if out := m.sh(t, "systemctl --failed --plain --no-legend"); out != "" {
		t.Errorf("failed units:\n%s", out)
	}
	if out := m.try("ballast verify"); out.Err != nil {
		t.Errorf("verify: %v\n%s", out.Err, out.Output())
	}
	for _, want := range models {
		m.mustPull(t, want.ref)
		m.holds(t, want)
	}
	if out := m.try("ballast verify"); out.Err != nil {
		t.Errorf("verify, after the pulls: %v\n%s", out.Err, out.Output())
	}
}
