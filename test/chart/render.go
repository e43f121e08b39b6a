package chart

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// Dir is the chart, relative to a package in this module's root.
const Dir = "../../contrib/helm/ballast"

// namespace is the namespace of the installations.
const namespace = "ballast-system"

// Render renders the chart in dir as `helm install` does, with values over its defaults. It returns the
// documents by the name of their template.
func Render(dir string, values map[string]any) (map[string][]string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: "ballast", Namespace: namespace, IsInstall: true, Revision: 1}
	all, err := chartutil.ToRenderValues(c, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	docs := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) != ".yaml" {
			continue
		}
		for d := range strings.SplitSeq("\n"+files[name], "\n---\n") {
			if strings.TrimSpace(d) != "" {
				docs[path.Base(name)] = append(docs[path.Base(name)], d)
			}
		}
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: no documents", dir)
	}
	return docs, nil
}
