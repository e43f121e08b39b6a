package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	nodeapi "k8s.io/api/node/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// An Object is a rendered object.
type Object struct {
	Kind, Name, Namespace string
	Annotations           map[string]string
	JSON                  []byte // in the order of the API's types, without empty fields
	Typed                 any    // a pointer to the type of the API
}

// typeOf returns a new object of the API, or nil for a type that is not part of Kubernetes.
func typeOf(apiVersion, kind string) any {
	switch apiVersion + "/" + kind {
	case "v1/ConfigMap":
		return &core.ConfigMap{}
	case "v1/ServiceAccount":
		return &core.ServiceAccount{}
	case "v1/Namespace":
		return &core.Namespace{}
	case "v1/Pod":
		return &core.Pod{}
	case "coordination.k8s.io/v1/Lease":
		return &coordination.Lease{}
	case "apps/v1/Deployment":
		return &apps.Deployment{}
	case "apiextensions.k8s.io/v1/CustomResourceDefinition":
		return &extensions.CustomResourceDefinition{}
	case "apps/v1/DaemonSet":
		return &apps.DaemonSet{}
	case "policy/v1/PodDisruptionBudget":
		return &policy.PodDisruptionBudget{}
	case "batch/v1/Job":
		return &batch.Job{}
	case "node.k8s.io/v1/RuntimeClass":
		return &nodeapi.RuntimeClass{}
	case "rbac.authorization.k8s.io/v1/ClusterRole":
		return &rbac.ClusterRole{}
	case "rbac.authorization.k8s.io/v1/ClusterRoleBinding":
		return &rbac.ClusterRoleBinding{}
	case "rbac.authorization.k8s.io/v1/Role":
		return &rbac.Role{}
	case "rbac.authorization.k8s.io/v1/RoleBinding":
		return &rbac.RoleBinding{}
	case "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy":
		return &admission.ValidatingAdmissionPolicy{}
	case "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding":
		return &admission.ValidatingAdmissionPolicyBinding{}
	}
	return nil
}

// Decode strictly decodes a document: an unknown or duplicate field is an error.
func Decode(doc string) (Object, error) {
	p, err := yaml.YAMLToJSONStrict([]byte(doc))
	if err != nil {
		return Object{}, fmt.Errorf("%w in\n%s", err, doc)
	}
	var head struct {
		APIVersion, Kind string
		Metadata         struct {
			Name, Namespace string
			Annotations     map[string]string
		}
	}
	if err := json.Unmarshal(p, &head); err != nil {
		return Object{}, err
	}
	o := Object{Kind: head.Kind, Name: head.Metadata.Name, Namespace: head.Metadata.Namespace, Annotations: head.Metadata.Annotations}
	if o.Typed = typeOf(head.APIVersion, head.Kind); o.Typed == nil {
		if head.Kind != "PodMonitor" {
			return o, fmt.Errorf("%s %s is not known", head.APIVersion, head.Kind)
		}
		o.Typed = &map[string]any{}
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.DisallowUnknownFields()
	if err := dec.Decode(o.Typed); err != nil {
		return o, fmt.Errorf("%s %s: %w", o.Kind, o.Name, err)
	}
	o.JSON, err = json.MarshalIndent(o.Typed, "", "  ")
	return o, err
}

// Objects decodes all documents, sorted by kind and name, except those that contain only comments.
func Objects(docs []string) ([]Object, error) {
	var all []Object
	for _, d := range docs {
		if isEmpty(d) {
			continue
		}
		o, err := Decode(d)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Object) int { return strings.Compare(a.ID(), b.ID()) })
	return all, nil
}

// ID returns the kind and the name.
func (o Object) ID() string { return o.Kind + "/" + o.Name }

// Hook reports whether Helm creates it only during an operation on the release.
func (o Object) Hook() bool { return o.Annotations["helm.sh/hook"] != "" }

func isEmpty(doc string) bool {
	for line := range strings.Lines(doc) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}
