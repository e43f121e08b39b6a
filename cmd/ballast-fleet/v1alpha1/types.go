package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the objects.
var GroupVersion = schema.GroupVersion{Group: "ballast.dev", Version: "v1alpha1"}

// AddToScheme registers the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ModelSet{}, &ModelSetList{}, &ModelNode{}, &ModelNodeList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// ModelSet names models that nodes have.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=mset
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name has more than 63 characters: it is part of a label of nodes"
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`,description="Nodes that have all models, of the nodes that should"
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`,description="Nodes where a model cannot be downloaded"
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.progress`,description="Downloaded bytes of all nodes"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Deadline",type=date,JSONPath=`.spec.deadline`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ModelSetSpec `json:"spec"`
	// +optional
	Status ModelSetStatus `json:"status,omitempty"`
}

// ModelSetSpec is what is wished.
type ModelSetSpec struct {
	// Models are references with registry, and a tag or a digest. A tag is looked up again every ten minutes.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.matches('^[^/@ ]+[.:][^/@ ]*/[^@ ]+(:[^/@ ]+|@sha256:[0-9a-f]{64})$'))",message="a model is HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST, with the host of its registry"
	// +listType=set
	Models []string `json:"models"`

	// NodeSelector selects nodes by their labels. Without one, all nodes of the DaemonSet have the models.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Deadline is when all nodes should have the models. At 80 % of the time from the creation of the set, an event
	// says so if the rate of a node does not suffice.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`

	// Keep is the number of versions of a tag that stay pinned, with the newest.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	Keep int32 `json:"keep,omitempty"`

	// Rate limits the bytes per second that each node downloads of the set, such as 50Mi. A model of several sets has
	// the highest rate of these. There is no limit while a pod waits for a model.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('64Ki')) >= 0",message="the rate is less than 64Ki bytes a second"
	Rate *resource.Quantity `json:"rate,omitempty"`

	// PullSecret is the name of a secret of type kubernetes.io/dockerconfigjson in the namespace of the agents, which
	// fleet.pullSecrets of the chart lists. Without one, models must be public, or in a registry of
	// upstream.share_credentials.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PullSecret string `json:"pullSecret,omitempty"`
}

// ReadyCondition is the condition of a ModelSet whose models all nodes have.
const ReadyCondition = "Ready"

// ModelSetStatus is what the controller has counted.
type ModelSetStatus struct {
	// ObservedGeneration is the generation of the spec that was counted.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Desired is the number of selected nodes, Ready of those that have all models, Failed of those where one cannot be
	// downloaded.
	Desired int32 `json:"desired"`
	Ready   int32 `json:"ready"`
	Failed  int32 `json:"failed"`

	// Nodes is "ready/desired".
	// +optional
	Nodes string `json:"nodes,omitempty"`

	// Progress is the percentage of the known bytes of all nodes.
	// +optional
	Progress string `json:"progress,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Warned is the deadline about which an event was made.
	// +optional
	Warned *metav1.Time `json:"warned,omitempty"`
}

// ModelSetList is a list of ModelSets.
//
// +kubebuilder:object:root=true
type ModelSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ModelSet `json:"items"`
}

// ModelNode is what one node has of the models of all sets. Its name is that of the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=mnode
// +kubebuilder:metadata:annotations="helm.sh/resource-policy=keep"
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.status.models`,description="Models that are ready, of all"
// +kubebuilder:printcolumn:name="Phases",type=string,JSONPath=`.status.list[*].phase`
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.list[?(@.error)].error`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status ModelNodeStatus `json:"status,omitempty"`
}

// MaxBytes limits each number of bytes, and of bytes per second, that a node reports: a petabyte. A node that is
// compromised spoils no sum of all nodes by more.
const MaxBytes = 1 << 50

// ModelNodeStatus is the state of a node.
type ModelNodeStatus struct {
	// Models is "ready/all".
	// +optional
	Models string `json:"models,omitempty"`

	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +listType=map
	// +listMapKey=ref
	List []ModelState `json:"list,omitempty"`

	// Omitted is the number of models of sets that the node does not get, because it has 512 others.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Omitted int32 `json:"omitted,omitempty"`

	// Pulls are the downloads that pulls of containerd wait for, also of models that no set names.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Pulls []PullState `json:"pulls,omitempty"`

	// Disk is what models take on the node, and Received where their bytes came from; not newer than some minutes.
	// +optional
	Disk *DiskState `json:"disk,omitempty"`
	// +optional
	Received *ReceivedState `json:"received,omitempty"`
}

// PullState is a download that a pull of containerd waits for.
type PullState struct {
	// Refs are references of the model.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	Refs []string `json:"refs,omitempty"`

	// Total and Completed are bytes, Rate is bytes per second.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Total int64 `json:"total"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Completed int64 `json:"completed"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Rate int64 `json:"rate"`
}

// DiskState is the disk of a node, in bytes.
type DiskState struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Models int64 `json:"models"` // files of models, each once
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Saved int64 `json:"saved"` // what they would take in addition without sharing
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Free int64 `json:"free"` // whole gigabytes
}

// ReceivedState are the bytes that a node has received since its daemon was started.
type ReceivedState struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Registries int64 `json:"registries"` // from registries themselves
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=address
	Mirrors []MirrorState `json:"mirrors,omitempty"`
}

// MirrorState is a mirror of a node.
type MirrorState struct {
	// +kubebuilder:validation:MaxLength=512
	Address string `json:"address"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Bytes int64 `json:"bytes"`
	// Wrong are files and chunks with wrong bytes: the mirror is not asked for an hour after each.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Wrong int64 `json:"wrong,omitempty"`
}

// A Phase is how far a model is on a node.
//
// +kubebuilder:validation:Enum=Pending;Downloading;Ready;Failed
type Phase string

// The phases. A model that was ready stays ready while its tag is looked up again.
const (
	PhasePending     Phase = "Pending"
	PhaseDownloading Phase = "Downloading"
	PhaseReady       Phase = "Ready"  // complete, pinned, and listed by the kubelet
	PhaseFailed      Phase = "Failed" // it is tried again
)

// Phases are all phases.
var Phases = []Phase{PhaseReady, PhaseDownloading, PhasePending, PhaseFailed}

// ModelState is one model on a node.
type ModelState struct {
	// +kubebuilder:validation:MaxLength=512
	Ref   string `json:"ref"`
	Phase Phase  `json:"phase"`

	// Total and Completed are bytes, Rate is bytes per second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Total int64 `json:"total,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Completed int64 `json:"completed,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Rate int64 `json:"rate,omitempty"`

	// Registries and Mirrors are the bytes of the last download that came from there; others were present.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Registries int64 `json:"registries,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Mirrors int64 `json:"mirrors,omitempty"`

	// Pinned are the digests of the versions that are pinned, the newest first.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Pinned []string `json:"pinned,omitempty"`

	// Origin is the digest that the newest version has in its registry. Nodes that make different digests of one origin
	// have different settings.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Origin string `json:"origin,omitempty"`

	// Error is why the last attempt failed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`

	// Since is the time of the last change of the phase.
	Since metav1.Time `json:"since"`
}

// ModelNodeList is a list of ModelNodes.
//
// +kubebuilder:object:root=true
type ModelNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ModelNode `json:"items"`
}
