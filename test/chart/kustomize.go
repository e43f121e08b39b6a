package chart

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// KustomizeDir is the Kustomize counterpart of the chart, relative to a package in this module's root.
const KustomizeDir = "../../contrib/kustomize"

// generatedHead is the first line of the files returned by Generated.
const generatedHead = "# What the chart renders with %s; written by `make chart`, do not edit.\n"

// helmLabels are labels that only objects installed by Helm have.
var helmLabels = []string{"app.kubernetes.io/managed-by", "helm.sh/chart"}

// Generated returns the files of the Kustomize bases by name: the objects of the chart in dir, without
// those of Helm.
func Generated(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, values := range map[string]map[string]any{"": {}, "-pod": {"distro": "talos", "daemon": "pod"}} {
		docs, err := Render(dir, values)
		if err != nil {
			return nil, err
		}
		all, err := Objects(slices.Concat(slices.Collect(maps.Values(docs))...))
		if err != nil {
			return nil, err
		}
		says := "its defaults"
		if len(values) > 0 {
			says = "distro: talos, daemon: pod"
		}
		var base, remove bytes.Buffer
		fmt.Fprintf(&base, generatedHead, says)
		fmt.Fprintf(&remove, generatedHead, says+", for uninstalling")
		for _, o := range all {
			p, err := withoutHelm(o)
			switch {
			case err != nil:
				return nil, err
			case !o.Hook():
				fmt.Fprintf(&base, "---\n%s", p)
			case !strings.HasSuffix(o.Name, "-gone"): // Helm waits by these
				fmt.Fprintf(&remove, "---\n%s", p)
			}
		}
		files["base"+name+"/ballast.yaml"] = base.Bytes()
		files["remove"+name+"/remove.yaml"] = remove.Bytes()
	}
	return files, nil
}

// withoutHelm returns an object as YAML without the hooks and labels of Helm.
func withoutHelm(o Object) ([]byte, error) {
	var v map[string]any
	if err := yaml.Unmarshal(o.JSON, &v); err != nil {
		return nil, err
	}
	delete(v, "status")
	meta := v["metadata"].(map[string]any)
	if labels, ok := meta["labels"].(map[string]any); ok {
		for _, l := range helmLabels {
			delete(labels, l)
		}
	}
	if notes, ok := meta["annotations"].(map[string]any); ok {
		maps.DeleteFunc(notes, func(k string, _ any) bool { return strings.HasPrefix(k, "helm.sh/") })
		if len(notes) == 0 {
			delete(meta, "annotations")
		}
	}
	dropNull(v)
	return yaml.Marshal(v)
}

// dropNull removes empty fields: the API's types encode an unset time as null.
func dropNull(v map[string]any) {
	maps.DeleteFunc(v, func(_ string, x any) bool {
		m, ok := x.(map[string]any)
		if ok {
			dropNull(m)
		}
		return x == nil
	})
}

// Build builds a directory as `kubectl apply -k` does.
func Build(dir string) ([]Object, error) {
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	var docs []string
	for _, r := range m.Resources() {
		p, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		docs = append(docs, string(p))
	}
	return Objects(docs)
}
