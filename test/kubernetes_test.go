package test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// An Object has the fields of the Kubernetes API that the examples use: any other field, or a
// misspelled one, is an error. https://kubernetes.io/docs/reference/kubernetes-api/
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   metadata
	Spec       spec
	Handler    string
	Scheduling struct {
		NodeSelector map[string]string `yaml:"nodeSelector"`
	}
}

type metadata struct {
	Name, Namespace string
	Labels          map[string]string
	Annotations     map[string]string
}

// spec is the spec of a Job, a DaemonSet or a Pod.
type spec struct {
	BackoffLimit     int `yaml:"backoffLimit"`
	PodFailurePolicy struct {
		Rules []struct {
			Action      string
			OnExitCodes struct {
				ContainerName string `yaml:"containerName"`
				Operator      string
				Values        []int
			} `yaml:"onExitCodes"`
		}
	} `yaml:"podFailurePolicy"`
	Selector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	UpdateStrategy struct {
		RollingUpdate struct {
			MaxUnavailable string `yaml:"maxUnavailable"`
		} `yaml:"rollingUpdate"`
	} `yaml:"updateStrategy"`
	Template struct {
		Metadata metadata
		Spec     podSpec
	}
	podSpec `yaml:",inline"`
}

type podSpec struct {
	RestartPolicy    string            `yaml:"restartPolicy"`
	NodeName         string            `yaml:"nodeName"`
	NodeSelector     map[string]string `yaml:"nodeSelector"`
	RuntimeClassName string            `yaml:"runtimeClassName"`
	Tolerations      []struct{ Key, Operator, Value, Effect string }
	InitContainers   []container `yaml:"initContainers"`
	Containers       []container
	Volumes          []struct {
		Name     string
		HostPath struct{ Path, Type string } `yaml:"hostPath"`
		Image    struct {
			Reference  string
			PullPolicy string `yaml:"pullPolicy"`
		}
	}
}

type container struct {
	Name, Image   string
	Command, Args []string
	Ports         []struct {
		ContainerPort int `yaml:"containerPort"`
	}
	SecurityContext struct {
		RunAsUser *int `yaml:"runAsUser"`
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

// parseObject parses a file with one object.
func parseObject(p []byte) (o object, err error) {
	dec := yaml.NewDecoder(bytes.NewReader(p))
	dec.KnownFields(true)
	if err := dec.Decode(&o); err != nil {
		return o, err
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return o, errors.New("more than one document")
	}
	return o, nil
}

func readObject(t *testing.T, name string) (o object, text string) {
	t.Helper()
	p, err := os.ReadFile(filepath.Join("../contrib/kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	if o, err = parseObject(p); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return o, string(p)
}

// TestKubernetesStrict checks that parseObject finds misspelled fields.
func TestKubernetesStrict(t *testing.T) {
	for _, text := range []string{
		"kind: Pod\nspec: {restartpolicy: Never}\n", "kind: Pod\nkind: Pod\n", "kind: [\n", "kind: Pod\n---\nkind: Pod\n",
		"kind: Pod\nspec: {containers: [{securityContext: {runAsUser: root}}]}\n",
	} {
		if o, err := parseObject([]byte(text)); err == nil {
			t.Errorf("%q: got %+v, want an error", text, o)
		}
	}
}

// TestKubernetes checks the settings on which the examples for Kubernetes depend.
func TestKubernetes(t *testing.T) {
	files, err := filepath.Glob("../contrib/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("files: %v, %v", files, err)
	}
	for _, f := range files {
		o, _ := readObject(t, filepath.Base(f))
		for _, pod := range []podSpec{o.Spec.podSpec, o.Spec.Template.Spec} {
			checkMounts(t, filepath.Base(f), pod)
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				// The admin socket belongs to root, and the user of the image is not root.
				if slices.Contains(c.Command, "prefetch") && (c.SecurityContext.RunAsUser == nil || *c.SecurityContext.RunAsUser != 0) {
					t.Errorf("%s: container %s does not run as root", f, c.Name)
				}
			}
		}
	}
}

// checkMounts checks that volumes and mounts match.
func checkMounts(t *testing.T, file string, pod podSpec) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = false
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, m := range c.VolumeMounts {
			if _, ok := volumes[m.Name]; !ok {
				t.Errorf("%s: container %s mounts %s, which is no volume", file, c.Name, m.Name)
			}
			volumes[m.Name] = true
		}
	}
	for name, used := range volumes {
		if !used {
			t.Errorf("%s: the volume %s is not mounted", file, name)
		}
	}
}

// TestKubernetesJob checks that the Job does not retry errors that a retry cannot fix.
func TestKubernetesJob(t *testing.T) {
	o, _ := readObject(t, "prefetch-job.yaml")
	pod := o.Spec.Template.Spec
	if o.Kind != "Job" || pod.RestartPolicy != "Never" || len(pod.Containers) != 1 || pod.Containers[0].Command[1] != "prefetch" {
		t.Fatalf("got %+v", o)
	}
	var got []int
	for _, r := range o.Spec.PodFailurePolicy.Rules {
		if r.Action == "FailJob" && r.OnExitCodes.Operator == "In" && r.OnExitCodes.ContainerName == pod.Containers[0].Name {
			got = append(got, r.OnExitCodes.Values...)
		}
	}
	if d := cmp.Diff(got, []int{2, 3, 4, 8, 10}); d != "" {
		t.Errorf("exit codes that fail the Job (got, want):\n%s", d)
	}
}

// TestKubernetesDaemonSet checks that tainted nodes get models too, and that one that cannot download stops no other.
func TestKubernetesDaemonSet(t *testing.T) {
	o, text := readObject(t, "prefetch.yaml")
	pod := o.Spec.Template.Spec
	if o.Kind != "DaemonSet" || len(pod.InitContainers) != 1 || pod.InitContainers[0].Command[1] != "prefetch" {
		t.Fatalf("got %+v", o)
	}
	if len(pod.Tolerations) != 1 || pod.Tolerations[0].Operator != "Exists" || pod.Tolerations[0].Key != "" || pod.Tolerations[0].Effect != "" {
		t.Errorf("tolerations: got %+v, want all taints", pod.Tolerations)
	}
	if d := cmp.Diff(o.Spec.Selector.MatchLabels, o.Spec.Template.Metadata.Labels); d != "" {
		t.Errorf("the selector is not for the pods (selector, labels):\n%s", d)
	}
	if got := o.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable; got != "100%" {
		t.Errorf("maxUnavailable %q: one node after the other", got)
	}
	if len(pod.NodeSelector) > 0 || !strings.Contains(text, "kubectl label node") {
		t.Errorf("a label is needed that nothing sets: %v", pod.NodeSelector)
	}
}

// TestKubernetesPod checks that the example runs on a node that the chart or install.md sets up, and that
// the pages show the same pod.
func TestKubernetesPod(t *testing.T) {
	o, text := readObject(t, "pod.yaml")
	class, _ := readObject(t, "runtimeclass.yaml")
	if o.Kind != "Pod" || o.Spec.RuntimeClassName != class.Metadata.Name || len(o.Spec.Volumes) != 1 || o.Spec.Volumes[0].Image.Reference == "" {
		t.Errorf("got %+v", o)
	}
	if !strings.Contains(text, "remove if setup ran without --runtime-handler") || !strings.Contains(text, "--runtime-handler "+class.Handler) {
		t.Error("it does not explain when the RuntimeClass is needed")
	}
	// A kubelet does not send the handler of a RuntimeClass with a pull.
	if got := o.Metadata.Annotations["io.containerd.cri.runtime-handler"]; got != class.Handler {
		t.Errorf("the pulls of the pod are with the handler %q, want %q", got, class.Handler)
	}
	for _, page := range []string{"../README.md", "../contrib/docs/kubernetes.md"} {
		m := regexp.MustCompile("(?ms)^```yaml\n(.*?kind: Pod.*?)^```$").FindStringSubmatch(read(t, page))
		if m == nil {
			t.Errorf("%s shows no pod", page)
			continue
		}
		shown, err := parseObject([]byte(m[1]))
		if err != nil {
			t.Errorf("%s: %v", page, err)
		}
		if d := cmp.Diff(o, shown, cmp.AllowUnexported(spec{}, podSpec{})); d != "" || !strings.Contains(m[1], "remove if setup ran without --runtime-handler") {
			t.Errorf("%s shows another pod than contrib/kubernetes (-there +page):\n%s", page, d)
		}
	}
}

// TestInstallSetsLabels checks that the sections about nodes of Kubernetes that are set up by hand end with
// nodes that pods of the RuntimeClass are scheduled to.
func TestInstallSetsLabels(t *testing.T) {
	class, _ := readObject(t, "runtimeclass.yaml")
	for _, section := range []string{"### Plain, and kubeadm\n", "### kind\n"} {
		_, text, ok := strings.Cut(read(t, "../contrib/docs/install.md"), section)
		text, _, _ = strings.Cut(text, "\n### ")
		want := []string{"--runtime-handler " + class.Handler, "kubectl apply -f contrib/kubernetes/runtimeclass.yaml"}
		for key, value := range class.Scheduling.NodeSelector {
			want = append(want, "kubectl label node NODE "+key+"="+value)
		}
		for _, w := range want {
			if !ok || !strings.Contains(text, w) {
				t.Errorf("%q has no %q", section, w)
			}
		}
	}
}
