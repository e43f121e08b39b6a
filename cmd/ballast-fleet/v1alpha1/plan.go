package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ModelPlan is what nodes do for the ModelSet of the same name. The controller writes it for the agents, to which the
// counts in the status of a ModelSet say nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=mplan
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:printcolumn:name="Turns",type=string,JSONPath=`.spec.turns`,description="Nodes that may download, if their number is limited"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelPlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what nodes do.
	Spec ModelPlanSpec `json:"spec"`
}

// ModelPlanSpec is what nodes do for a ModelSet.
type ModelPlanSpec struct {
	// Set is the spec of the ModelSet.
	Set ModelSetSpec `json:"set"`

	// Turns are those of the status of the ModelSet.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	Turns []string `json:"turns,omitempty"`

	// Versions are those of the status of the ModelSet.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=ref
	Versions []ModelVersion `json:"versions,omitempty"`
}

// ModelPlanList is a list of ModelPlans.
//
// +kubebuilder:object:root=true
type ModelPlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ModelPlan `json:"items"`
}

// ModelVersion is the digest that a reference points to. Sets with the same reference have the same version of it.
type ModelVersion struct {
	// Ref is the reference in the spec.
	// +kubebuilder:validation:MaxLength=512
	Ref string `json:"ref"`

	// Digest is that of the manifest or index in the registry. It is empty until the tag was looked up.
	// +optional
	// +kubebuilder:validation:Pattern=`^(sha256:[0-9a-f]{64})?$`
	Digest string `json:"digest,omitempty"`

	// Each is set if no digest says what the tag points to, such as for an archive at a URL: each node looks it up.
	// +optional
	Each bool `json:"each,omitempty"`

	// Node is the node that looks the tag up: another one if it is down or cannot do so.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// Term is increased each time that Node is another one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Term int64 `json:"term,omitempty"`

	// Error is why the tag could not be looked up the last time.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`
}

// Known reports whether it is known what nodes should download.
func (v ModelVersion) Known() bool { return v.Digest != "" || v.Each }
