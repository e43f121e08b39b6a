//go:build vm

package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// kubeletConfig is the configuration of a kubelet without an API server.
// https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
registerNode: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /root/pods
podLogsDir: /root/logs
resolvConf: /root/resolv.conf
fileCheckFrequency: 1s
cgroupDriver: systemd
failSwapOn: false
makeIPTablesUtilChains: false
`

// userPod has a kubelet start a pod in a user namespace, with an image volume.
func (m *machine) userPod(t *testing.T) {
	t.Helper()
	want := m.registries.pushOllama(t, "library/pod", "1b", weights(60, 16<<20))
	m.sh(t, "mkdir -p /root/pods /root/kubelet.d /root/logs\n: >/root/resolv.conf\ncat >/root/kubelet.yaml <<'END'\n"+kubeletConfig+"END\n")
	m.sh(t, "systemd-run --quiet --unit kubelet.service -p KillMode=process /root/kubelet --config /root/kubelet.yaml --root-dir /root/kubelet.d --cert-dir /root/kubelet.d/pki --hostname-override node --node-ip "+nodeAddress)
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "user", "namespace": "default"},
		"spec": map[string]any{
			"hostUsers": false, "terminationGracePeriodSeconds": 1,
			"containers": []any{map[string]any{
				"name": "main", "image": node.OtherHost + "/busybox:1", "imagePullPolicy": "IfNotPresent",
				"command":      []string{"sh", "-c", "read first host count </proc/self/uid_map; echo users $first $count; test $host -gt 0 && echo mapped; stat -c '%u:%g %n' /model/model.gguf /bin/busybox; sha256sum /model/model.gguf; echo end; trap exit TERM; sleep 1000000 & wait"},
				"volumeMounts": []any{map[string]any{"name": "model", "mountPath": "/model"}},
			}},
			"volumes": []any{map[string]any{"name": "model", "image": map[string]any{"reference": want.ref}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.sh(t, "cat >/root/pods/user.json <<'END'\n"+string(pod)+"\nEND\n")
	defer func() {
		m.sh(t, "rm /root/pods/user.json")
		eventually(t, "end of the pod", func() error {
			if left := m.sh(t, "ctr -n k8s.io tasks ls -q"); left != "" {
				return errors.New(left)
			}
			return nil
		})
		m.sh(t, "systemctl stop kubelet; rm -rf /var/lib/kubelet; ctr -n k8s.io containers ls -q | xargs -r ctr -n k8s.io containers rm")
	}()
	var got string
	eventually(t, "output of the pod", func() error {
		out := m.try("cat /root/logs/*/main/*.log").Stdout
		if !strings.Contains(out, " end\n") {
			return fmt.Errorf("the pod says %q; the kubelet: %s", out, m.try("journalctl -b -u kubelet --no-pager -o cat | grep -e ^E -e ^W | tail -n 5").Stdout)
		}
		got = out
		return nil
	})
	for _, line := range []string{" users 0 65536\n", " mapped\n", " 0:0 /model/model.gguf\n", " 0:0 /bin/busybox\n", " " + want.sum + "  /model/model.gguf\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("%q is not in the output of the pod:\n%s", line, got)
		}
	}
}

// kubeletCargo is the kubelet that test/kubernetes/build.sh builds.
func kubeletCargo() cargo {
	return cargo{"/root/kubelet": {from: filepath.Join(tools, "kubernetes/kubelet"), mode: 0o755}}
}
