package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// mustRender returns the objects of the chart.
func mustRender(t *testing.T, values map[string]any) map[string]Object {
	t.Helper()
	docs, err := Render(Dir, values)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Object{}
	for name, d := range docs {
		objects, err := Objects(d)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, o := range objects {
			if _, twice := all[o.ID()]; twice {
				t.Errorf("%s is there twice", o.ID())
			}
			all[o.ID()] = o
		}
	}
	return all
}

// cases are different values of the chart; each is also rendered for each distribution.
var cases = map[string]map[string]any{
	"defaults":    {},
	"all pods":    {"runtimeHandler": ""},
	"no marks":    {"node": map[string]any{"mark": false}},
	"fleet alone": {"node": map[string]any{"mark": false}, "fleet": map[string]any{"enabled": true}},
	"no remove":   {"remove": map[string]any{"enabled": false}},
	"by digest":   {"image": map[string]any{"registry": "registry.example:5000", "digest": "sha256:" + strings.Repeat("a", 64)}},
	"nothing":     {"registries": []any{}, "nodeImages": []any{}},
	"no restart":  {"restartContainerd": false},
	"all": {
		"registries": []any{"registry.ollama.ai", "docker.io"}, "nodeImages": []any{"quay.io/calico/node:v3"},
		"config": "[gc]\nquota = \"1GiB\"\n", "prefetch": map[string]any{"models": []any{"registry.ollama.ai/library/a:1"}},
		"metrics":          map[string]any{"enabled": true, "podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}}},
		"imagePullSecrets": []any{map[string]any{"name": "pull"}}, "podLabels": map[string]any{"team": "ml"}, "podAnnotations": map[string]any{"a": "b"},
		"env":                 []any{map[string]any{"name": "NO_PROXY", "value": ".local"}},
		"credentialProviders": map[string]any{"config": "/etc/eks/config.json", "dir": "/opt/providers", "paths": []any{"/etc/kubernetes"}},
		"fleet":               map[string]any{"enabled": true, "pullSecrets": []any{"models"}, "holdTaint": true},
		"remove":              map[string]any{"force": true}, "affinity": map[string]any{"nodeAffinity": map[string]any{}},
	},
}

// TestRender strictly decodes everything that the chart can render, and checks the rules for all pods.
func TestRender(t *testing.T) {
	for name, values := range cases {
		for _, distro := range []string{"auto", "plain", "kubeadm", "k3s", "rke2", "kind", "eks", "talos"} {
			for _, daemon := range []string{"service", "pod"} {
				v := maps.Clone(values)
				v["distro"], v["daemon"] = distro, daemon
				if distro == "talos" && daemon == "service" || daemon == "pod" && (distro == "auto" || name == "all pods") {
					continue // refused; see TestRefused
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, distro, daemon), func(t *testing.T) {
					for _, o := range mustRender(t, v) {
						checkObject(t, o)
					}
				})
			}
		}
	}
}

// TestEnvironment: the environment in the values is that of the daemon: of its container, or of the container that writes
// it on the node, which knows the names, and of no other.
func TestEnvironment(t *testing.T) {
	env := []any{
		map[string]any{"name": "HTTPS_PROXY", "value": "http://proxy.example"},
		map[string]any{"name": "HF_TOKEN", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "hf", "key": "token"}}},
	}
	for daemon, owner := range map[string]string{"service": "DaemonSet/ballast setup", "pod": "DaemonSet/ballast ballastd"} {
		for _, o := range mustRender(t, map[string]any{"distro": "plain", "daemon": daemon, "env": env}) {
			set, ok := o.Typed.(*apps.DaemonSet)
			if !ok {
				continue
			}
			for _, c := range slices.Concat(set.Spec.Template.Spec.InitContainers, set.Spec.Template.Spec.Containers) {
				has := slices.ContainsFunc(c.Env, func(e core.EnvVar) bool { return e.Name == "HF_TOKEN" && e.ValueFrom.SecretKeyRef.Key == "token" })
				named := slices.Contains(c.Args, "--env=HTTPS_PROXY") && slices.Contains(c.Args, "--env=HF_TOKEN")
				if id := o.ID() + " " + c.Name; has != (id == owner) || named != (id == owner && daemon == "service") {
					t.Errorf("daemon: %s: %s has it: %t, and names it: %t", daemon, id, has, named)
				}
			}
		}
	}
}

// TestCredentialProviders: ballastd knows the plugins of the kubelet, and in a container it has what they need of the node,
// read-only and at the same paths. No other container has it.
func TestCredentialProviders(t *testing.T) {
	type values = map[string]any
	const aks = "/var/lib/kubelet/"
	for name, tt := range map[string]struct {
		providers values
		want      map[string]core.HostPathType
	}{
		"none": {nil, map[string]core.HostPathType{}},
		"a file among the programs": {values{"config": "/etc/eks/provider/config.json", "dir": "/etc/eks/provider"},
			map[string]core.HostPathType{"/etc/eks/provider": core.HostPathDirectory}},
		"a file elsewhere": {values{"config": aks + "credential-provider-config.yaml", "dir": aks + "credential-provider", "paths": []any{"/etc/kubernetes/azure.json"}},
			map[string]core.HostPathType{aks + "credential-provider": core.HostPathDirectory, aks + "credential-provider-config.yaml": core.HostPathFile, "/etc/kubernetes/azure.json": core.HostPathUnset}},
	} {
		for _, daemon := range []string{"service", "pod"} {
			v := values{"distro": "plain", "daemon": daemon, "metrics": values{"enabled": true}}
			if tt.providers != nil {
				v["credentialProviders"] = tt.providers
			}
			objects := mustRender(t, v)
			file := objects["ConfigMap/ballast"].Typed.(*core.ConfigMap).Data["40-credential-providers.toml"]
			want := ""
			if tt.providers != nil {
				want = fmt.Sprintf("version = 1\n[upstream]\ncredential_provider_config = %q\ncredential_provider_dir = %q\n", tt.providers["config"], tt.providers["dir"])
			}
			if file != want {
				t.Errorf("%s, %s: got %q, want %q", name, daemon, file, want)
			}
			pod := objects["DaemonSet/ballast"].Typed.(*apps.DaemonSet).Spec.Template.Spec
			got, volumes := map[string]core.HostPathType{}, map[string]core.HostPathVolumeSource{}
			for _, vol := range pod.Volumes {
				if strings.HasPrefix(vol.Name, "providers-") {
					volumes[vol.Name] = *vol.HostPath
				}
			}
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				for _, m := range c.VolumeMounts {
					vol, ok := volumes[m.Name]
					if !ok {
						continue
					}
					if c.Name != "ballastd" || !m.ReadOnly || m.MountPath != vol.Path {
						t.Errorf("%s, %s: %s has %+v of %+v", name, daemon, c.Name, m, vol)
					}
					got[vol.Path] = core.HostPathUnset
					if vol.Type != nil {
						got[vol.Path] = *vol.Type
					}
				}
			}
			if daemon == "service" && len(got) > 0 || daemon == "pod" && !maps.Equal(got, tt.want) {
				t.Errorf("%s, %s: mounts %v, want %v", name, daemon, got, tt.want)
			}
		}
	}
}

// TestSettingsReplacePods: the pods are replaced when files of their nodes change, and not for other objects.
func TestSettingsReplacePods(t *testing.T) {
	settings := func(metrics map[string]any) string {
		set := mustRender(t, map[string]any{"metrics": metrics})["DaemonSet/ballast"].Typed.(*apps.DaemonSet)
		return set.Spec.Template.Annotations["ballast.dev/settings"]
	}
	base := settings(map[string]any{"enabled": true})
	if got := settings(map[string]any{"enabled": true, "port": 9756}); got == base {
		t.Error("another port replaces no pods")
	}
	if got := settings(map[string]any{"enabled": true, "podMonitor": map[string]any{"enabled": true}}); got != base {
		t.Error("a PodMonitor replaces pods")
	}
}

// TestChartLabels: labels can be stored with any version of the chart: tools that package it add build metadata.
func TestChartLabels(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ballast")
	if err := os.CopyFS(dir, os.DirFS(Dir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "Chart.yaml")
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{
		"0.1.0+1": "ballast-0.1.0_1",
		"0.1.0-rc.1+" + strings.Repeat("0123456789abcdef", 4): "ballast-0.1.0-rc.1_0123456789abcdef0123456789abcdef0123456789ab",
	} {
		if err := os.WriteFile(file, bytes.Replace(p, []byte("\nversion: 0.1.0\n"), []byte("\nversion: "+version+"\n"), 1), 0o644); err != nil {
			t.Fatal(err)
		}
		docs, err := Render(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := Objects(slices.Concat(slices.Collect(maps.Values(docs))...))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			var of meta.PartialObjectMetadata
			if err := json.Unmarshal(o.JSON, &of); err != nil {
				t.Fatal(err)
			}
			for k, v := range of.Labels {
				if wrong := validation.IsValidLabelValue(v); len(wrong) > 0 || k == "helm.sh/chart" && v != want {
					t.Errorf("%s of version %s: %s=%s, %s", o.ID(), version, k, v, wrong)
				}
			}
		}
	}
}

// TestPrefetchReplaced: other models reach all nodes at the same time, also if a node cannot download.
func TestPrefetchReplaced(t *testing.T) {
	objects := mustRender(t, map[string]any{"prefetch": map[string]any{"models": []any{"registry.example/a:1"}}})
	set := objects["DaemonSet/ballast-prefetch"].Typed.(*apps.DaemonSet)
	if update := set.Spec.UpdateStrategy.RollingUpdate; update == nil || update.MaxUnavailable.String() != "100%" {
		t.Errorf("got %+v", update)
	}
}

// TestSocketOfDistro: a daemon in a pod, and what removes one, have the socket of containerd that the set-up of the
// distribution names.
func TestSocketOfDistro(t *testing.T) {
	for _, distro := range []string{"plain", "kubeadm", "k3s", "rke2", "kind", "eks", "talos"} {
		socket := "/run/containerd/containerd.sock"
		if distro == "k3s" || distro == "rke2" {
			socket = "/run/k3s/containerd/containerd.sock"
		}
		objects := mustRender(t, map[string]any{"distro": distro, "daemon": "pod"})
		for set, container := range map[string]string{"ballast": "ballastd", "ballast-remove": "remove"} {
			pod := objects["DaemonSet/"+set].Typed.(*apps.DaemonSet).Spec.Template.Spec
			i := slices.IndexFunc(pod.Volumes, func(v core.Volume) bool { return v.HostPath != nil && v.HostPath.Path == path.Dir(socket) })
			j := slices.IndexFunc(pod.InitContainers, func(c core.Container) bool { return c.Name == container })
			if i < 0 || !slices.ContainsFunc(pod.InitContainers[j].VolumeMounts, func(m core.VolumeMount) bool {
				return m.Name == pod.Volumes[i].Name && m.MountPath == path.Dir(socket)
			}) {
				t.Errorf("%s: %s does not have %s", distro, container, socket)
			}
		}
	}
}

// TestRemovedWhenReady: pods of the removal are ready when their container has started, so all that they change is changed
// by containers before that. The Job that waits for them then removes them.
func TestRemovedWhenReady(t *testing.T) {
	pod := mustRender(t, nil)["DaemonSet/ballast-remove"].Typed.(*apps.DaemonSet).Spec.Template.Spec
	var before []string
	for _, c := range pod.InitContainers {
		before = append(before, c.Name)
	}
	if want := []string{"remove", "node"}; !slices.Equal(before, want) {
		t.Errorf("init containers %q, want %q", before, want)
	}
	for _, c := range pod.Containers {
		if len(c.Args)+len(c.Env)+len(c.VolumeMounts) > 0 {
			t.Errorf("container %s knows a node: %v %v %v", c.Name, c.Args, c.Env, c.VolumeMounts)
		}
	}
}

// checkObject checks what no values may change.
func checkObject(t *testing.T, o Object) {
	t.Helper()
	if d, ok := o.Typed.(*apps.Deployment); ok {
		checkContainers(t, o.ID(), d.Spec.Template.Spec)
		checkController(t, o.ID(), d)
	}
	set, ok := o.Typed.(*apps.DaemonSet)
	if !ok {
		return
	}
	pod := set.Spec.Template.Spec
	for k, v := range set.Spec.Selector.MatchLabels {
		if set.Spec.Template.Labels[k] != v {
			t.Errorf("%s: the selector is not for its pods", o.ID())
		}
	}
	if !pod.HostNetwork || pod.DNSPolicy != core.DNSDefault {
		t.Errorf("%s: it needs a network that needs other pods", o.ID())
	}
	if len(pod.Tolerations) != 1 || pod.Tolerations[0].Operator != core.TolerationOpExists || pod.Tolerations[0].Key != "" {
		t.Errorf("%s: tolerations %+v", o.ID(), pod.Tolerations)
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Errorf("%s: every container has a token", o.ID())
	}
	if pod.RuntimeClassName != nil {
		t.Errorf("%s: it is shown by what it brings", o.ID())
	}
	checkContainers(t, o.ID(), pod)
}

// checkController: a controller runs on Linux, also where all nodes have the startup taint, and is started again if it
// hangs.
func checkController(t *testing.T, id string, d *apps.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	if pod.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("%s: node selector %v", id, pod.NodeSelector)
	}
	if !slices.ContainsFunc(pod.Tolerations, func(x core.Toleration) bool {
		return x.Key == "ballast.dev/not-ready" && x.Operator == core.TolerationOpExists && x.Effect == ""
	}) {
		t.Errorf("%s: tolerations %+v", id, pod.Tolerations)
	}
	for _, c := range pod.Containers {
		if c.LivenessProbe == nil || c.ReadinessProbe == nil || pod.PriorityClassName == "" {
			t.Errorf("%s %s: no probes, or no priority", id, c.Name)
		}
	}
}

// socketsOf are the sockets that a container gets: the daemon and what replaces it get all, who asks for a model gets
// the admin socket, and who only watches gets the one that changes nothing, or with ModelSets the one for these.
var socketsOf = map[string]string{
	"DaemonSet/ballast ballastd":          "/run/ballast",
	"DaemonSet/ballast-holder holder":     "/run/ballast",
	"DaemonSet/ballast-remove remove":     "/run/ballast",
	"DaemonSet/ballast-prefetch prefetch": "/run/ballast/admin.sock",
	"DaemonSet/ballast node":              "/run/ballast/status",
}

// checkContainers checks volumes and privileges: this function decides which containers are privileged.
func checkContainers(t *testing.T, id string, pod core.PodSpec) {
	t.Helper()
	volumes, sockets := map[string]bool{}, map[string]string{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = false
		if v.HostPath != nil && strings.HasPrefix(v.HostPath.Path, "/run/ballast") {
			sockets[v.Name] = v.HostPath.Path
		}
	}
	privileged := map[string]bool{"DaemonSet/ballast ballastd": true, "DaemonSet/ballast-remove remove": true}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		sc := c.SecurityContext
		if sc == nil || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem {
			t.Errorf("%s %s: its root can be written", id, c.Name)
			continue
		}
		if got := sc.Privileged != nil && *sc.Privileged; got != privileged[id+" "+c.Name] {
			t.Errorf("%s %s: privileged %t", id, c.Name, got)
		} else if !got && (sc.Capabilities == nil || !slices.Equal(sc.Capabilities.Drop, []core.Capability{"ALL"}) || *sc.AllowPrivilegeEscalation) {
			t.Errorf("%s %s: it keeps capabilities", id, c.Name)
		}
		for _, m := range c.VolumeMounts {
			if _, ok := volumes[m.Name]; !ok {
				t.Errorf("%s %s mounts %s, which is no volume", id, c.Name, m.Name)
			}
			volumes[m.Name] = true
			if at, ok := sockets[m.Name]; ok && at != socketsOf[id+" "+c.Name] && (at != "/run/ballast/fleet" || !slices.Contains(c.Args, "--models")) {
				t.Errorf("%s %s gets %s, want %q", id, c.Name, at, socketsOf[id+" "+c.Name])
			}
			if m.Name == "account" && c.Name != "node" {
				t.Errorf("%s %s has the token", id, c.Name)
			}
			if m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationBidirectional && !privileged[id+" "+c.Name] {
				t.Errorf("%s %s: the API server refuses this propagation", id, c.Name)
			}
		}
	}
	for name, used := range volumes {
		if !used {
			t.Errorf("%s: %s is not mounted", id, name)
		}
	}
}

// TestSetupArgs compares the arguments of the setup with the values.
func TestSetupArgs(t *testing.T) {
	for name, tt := range map[string]struct {
		values map[string]any
		want   []string
	}{
		"defaults": {nil, []string{
			"--distro=auto", "--runtime-handler=ballast", "--like=", "--no-service=false", "--no-restart=false", "--settings=/settings",
			"--registry=registry.ollama.ai", "--image=ghcr.io/ballast-dev/ballast:v0.1.0", "--env=",
		}},
		"all": {map[string]any{
			"distro": "k3s", "daemon": "pod", "runtimeHandler": "models", "restartContainerd": false, "registries": []any{"a.example", "b.example:5000"},
			"nodeImages": []any{"c.example/cni:1"}, "runtimeHandlerLike": []any{"nvidia", "default"}, "image": map[string]any{"registry": "d.example", "repository": "x", "tag": "y"},
		}, []string{
			"--distro=k3s", "--runtime-handler=models", "--like=nvidia,default", "--no-service=true", "--no-restart=true", "--settings=/settings",
			"--registry=a.example", "--registry=b.example:5000", "--image=d.example/x:y", "--image=c.example/cni:1",
		}},
		"nothing": {map[string]any{"registries": []any{}, "runtimeHandler": ""}, []string{
			"--distro=auto", "--runtime-handler=", "--like=", "--no-service=false", "--no-restart=false", "--settings=/settings",
			"--registry=", "--image=ghcr.io/ballast-dev/ballast:v0.1.0", "--env=",
		}},
	} {
		set := mustRender(t, tt.values)["DaemonSet/ballast"].Typed.(*apps.DaemonSet)
		for _, c := range set.Spec.Template.Spec.InitContainers {
			if c.Name != "ballastd" && !slices.Equal(c.Args, tt.want) {
				t.Errorf("%s, %s: got %q, want %q", name, c.Name, c.Args, tt.want)
			}
		}
	}
}

// TestRefused checks that values that cannot work are refused with the reason before anything is
// installed.
func TestRefused(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"could not pull the image that brings it back": {"registries": []any{"ghcr.io"}},
		"leave docker.io out of registries":            {"registries": []any{"docker.io"}, "image": map[string]any{"registry": "index.docker.io"}},
		"could not start without itself":               {"daemon": "pod", "runtimeHandler": ""},
		"it needs daemon: pod":                         {"distro": "talos"},
		"/distro":                                      {"distro": "bottlerocket"},
		"/daemon":                                      {"daemon": "sidecar"},
		"/registries/0":                                {"registries": []any{"a/b"}},
		"/registries":                                  {"registries": "ghcr.io"},
		"/config":                                      {"config": "version = 1\n"},
		"/image/digest":                                {"image": map[string]any{"digest": "latest"}},
		"/image/registry":                              {"image": map[string]any{"registry": "--host"}},
		"/runtimeHandler":                              {"runtimeHandler": "a b"},
		"runtimeHandlerLike is for a runtimeHandler": {"runtimeHandler": "", "runtimeHandlerLike": []any{"nvidia"}},
		"/runtimeHandlerLike":                        {"runtimeHandlerLike": "nvidia"},
		"/runtimeHandlerLike/0":                      {"runtimeHandlerLike": []any{"nvidia,default"}},
		"/node/label":                                {"node": map[string]any{"label": "\" || true"}},
		"/metrics/port":                              {"metrics": map[string]any{"port": 80}},
		"additional properties":                      {"registry": "ghcr.io"},
		"goes with credentialProviders.dir":          {"credentialProviders": map[string]any{"config": "/etc/a/b"}},
		"/etc/ssl cannot be mounted":                 {"credentialProviders": map[string]any{"config": "/etc/a/b", "dir": "/etc/ssl"}},
		"/credentialProviders/dir":                   {"credentialProviders": map[string]any{"config": "/etc/a/b", "dir": "/opt"}},
		"/credentialProviders/paths/0":               {"credentialProviders": map[string]any{"paths": []any{"/etc/../root"}}},
		"daemon: pod needs a distro":                 {"daemon": "pod"},
		"metrics.port 5757 is":                       {"metrics": map[string]any{"enabled": true, "port": 5757}},
		"metrics.port 9758 is":                       {"metrics": map[string]any{"enabled": true, "port": 9758}, "fleet": map[string]any{"enabled": true}},
		"fleet.controller.page 9760 is":              {"fleet": map[string]any{"enabled": true, "controller": map[string]any{"page": 9760}}},
		"which are mounted without it": {"distro": "talos", "daemon": "pod", "credentialProviders": map[string]any{
			"config": "/etc/a/b", "dir": "/etc/a", "paths": []any{"/etc/a"}}},
	} {
		_, err := Render(Dir, values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", values, err, want)
		}
	}
}

// TestDecodeStrict checks that misspelled fields are errors.
func TestDecodeStrict(t *testing.T) {
	for _, doc := range []string{
		"apiVersion: v1\nkind: Pod\nspec: {restartpolicies: Never}", "apiVersion: v1\nkind: Pod\nkind: Pod", "apiVersion: v1\nkind: Pods",
		"apiVersion: v1\nkind: Pod\nspec: {hostNetwork: maybe}",
	} {
		if _, err := Decode(doc); err == nil {
			t.Errorf("%q: no error", doc)
		}
	}
}
