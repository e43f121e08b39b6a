package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GroupVersion is the group and version of the objects.
var GroupVersion = schema.GroupVersion{Group: "ballast.dev", Version: "v1alpha1"}

// AddToScheme registers the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ModelSet{}, &ModelSetList{}, &ModelPlan{}, &ModelPlanList{}, &ModelNode{}, &ModelNodeList{})
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
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.desired`,description="Nodes that should have the models"
// +kubebuilder:printcolumn:name="Have",type=integer,JSONPath=`.status.ready`,description="Nodes that have all models"
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`,description="Nodes where a model cannot be downloaded"
// +kubebuilder:printcolumn:name="Down",type=integer,JSONPath=`.status.down`,description="Nodes without all models where ballast does not run"
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.status.progress`,description="What all nodes have of the models"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updated`,priority=1,description="Nodes that have all models in the current versions"
// +kubebuilder:printcolumn:name="Deadline",type=string,JSONPath=`.spec.deadline`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says which models which nodes have.
	Spec ModelSetSpec `json:"spec"`
	// Status is what the controller has counted.
	// +optional
	Status ModelSetStatus `json:"status,omitempty"`
}

// ModelSetSpec says which models which nodes have.
type ModelSetSpec struct {
	// Models are references with registry, and a tag or a digest. One node looks a tag up every ten minutes, for all.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=3
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.matches('^[^/@ ]+[.:][^/@ ]*/[^@ ]+(:[^/@ ]+|@sha256:[0-9a-f]{64})$'))",message="a model is HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST, with the host of its registry"
	// +listType=set
	Models []string `json:"models"`

	// NodeSelector selects nodes of the DaemonSet by their labels. Without one, all of them have the models.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))",message="an operator is In or NotIn, with values, or Exists or DoesNotExist, without values"
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Paused has nodes begin no downloads for the set, and look up no tags. Downloads that run go on to their end.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Parallelism is the number of nodes that download models of the set at the same time; 0 pauses the set. Without
	// it, all nodes do. A node that has all models downloads a later version at any time.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	Parallelism *int32 `json:"parallelism,omitempty"`

	// MaxUnavailable is the number of selected nodes, or a percentage of them, rounded down, that may lack models of a
	// set that is Ready. The default is 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^(100|[0-9]{1,2})%$')",message="a number of nodes, or a percentage up to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// Deadline is when all nodes should have the models. When 80 % of the time from the last change of the spec has
	// passed, an event says so if they will not.
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

	// PullSecrets are names of secrets of type kubernetes.io/dockerconfigjson in the namespace of the agents, which
	// fleet.pullSecrets of the chart lists. Each one with an entry for a model is tried, also those of other sets with
	// the model. Without one, models must be public, or in a registry of upstream.share_credentials.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	PullSecrets []string `json:"pullSecrets,omitempty"`
}

// The conditions of a ModelSet.
const (
	ReadyCondition       = "Ready"       // all nodes have all models, but for as many as may lack some
	ProgressingCondition = "Progressing" // nodes download
	DegradedCondition    = "Degraded"    // something does not go as the spec says
)

// ModelSetStatus is what the controller has counted. Nodes without a pod of the DaemonSet do not count.
type ModelSetStatus struct {
	// ObservedGeneration is the generation of the spec that was counted.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Changed is when this generation of the spec was first counted.
	// +optional
	Changed *metav1.Time `json:"changed,omitempty"`

	// Desired is the number of selected nodes.
	Desired int32 `json:"desired"`

	// Ready is the number of selected nodes that have all models.
	Ready int32 `json:"ready"`

	// Updated is the number of these that have them in the versions of Versions.
	Updated int32 `json:"updated"`

	// Failed is the number of selected nodes where a model cannot be downloaded.
	Failed int32 `json:"failed"`

	// Down is the number of selected nodes that lack models, and whose pod of the DaemonSet is not ready: the node is
	// down or cannot be reached, or ballast does not run there.
	Down int32 `json:"down"`

	// Progress is the percentage of the models that the selected nodes have: of the bytes, and of the nodes while the
	// size of a model is not known. It is 100 only if all nodes have all models.
	Progress int32 `json:"progress"`

	// Turns are the nodes that may download, if parallelism limits their number.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	Turns []string `json:"turns,omitempty"`

	// Versions are the digests that the references of the spec point to: the nodes download these.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=ref
	Versions []ModelVersion `json:"versions,omitempty"`

	// Conditions are Ready (the nodes have the models, but for maxUnavailable), Progressing (nodes download), and
	// Degraded (something does not go as the spec says). The reason and the message say why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// WarnedGeneration is the generation of the spec about whose deadline an event was made.
	// +optional
	WarnedGeneration int64 `json:"warnedGeneration,omitempty"`
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
// +kubebuilder:printcolumn:name="Models",type=integer,JSONPath=`.status.desired`,description="Models of all sets for this node"
// +kubebuilder:printcolumn:name="Have",type=integer,JSONPath=`.status.ready`,description="Models that the node has"
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`,description="Models that cannot be downloaded"
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.list[?(@.error)].error`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ModelNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is the state of the node, which its agent writes.
	// +optional
	Status ModelNodeStatus `json:"status,omitempty"`
}

// MaxBytes limits each number of bytes, and of bytes per second, that a node reports: a petabyte. A node that is
// compromised spoils no sum of all nodes by more.
const MaxBytes = 1 << 50

// ModelNodeStatus is the state of a node.
type ModelNodeStatus struct {
	// Desired is the number of models in List.
	// +kubebuilder:validation:Minimum=0
	Desired int32 `json:"desired"`

	// Ready is the number of models that are ready.
	// +kubebuilder:validation:Minimum=0
	Ready int32 `json:"ready"`

	// Failed is the number of models that cannot be downloaded.
	// +kubebuilder:validation:Minimum=0
	Failed int32 `json:"failed"`

	// List has the models of all sets for this node, sorted by reference.
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

	// Disk is what models take on the node. It is up to five minutes old.
	// +optional
	Disk *DiskState `json:"disk,omitempty"`

	// Received is where the bytes of models came from. It is up to five minutes old.
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

	// Total is the size in bytes.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Total int64 `json:"total"`

	// Completed is how many bytes are there.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Completed int64 `json:"completed"`

	// Rate is bytes per second.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Rate int64 `json:"rate"`
}

// DiskState is the disk of a node, in bytes.
type DiskState struct {
	// Models are the files of models, each once.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Models int64 `json:"models"`

	// Saved is what the files would take in addition if models did not share them.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Saved int64 `json:"saved"`

	// Free is the free space, in whole gigabytes.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Free int64 `json:"free"`
}

// ReceivedState are the bytes that a node has received since its daemon was started.
type ReceivedState struct {
	// Registries are the bytes from registries themselves.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Registries int64 `json:"registries"`

	// Mirrors are the mirrors with the most bytes.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=address
	Mirrors []MirrorState `json:"mirrors,omitempty"`
}

// MirrorState is a mirror of a node.
type MirrorState struct {
	// Address is the URL of the mirror.
	// +kubebuilder:validation:MaxLength=512
	Address string `json:"address"`

	// Bytes are the bytes from the mirror.
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
	// Ref is the reference in the sets.
	// +kubebuilder:validation:MaxLength=512
	Ref string `json:"ref"`

	// Phase is how far the model is.
	Phase Phase `json:"phase"`

	// Total is the size in bytes; 0: not known yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Total int64 `json:"total,omitempty"`

	// Completed is how many bytes are there.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Completed int64 `json:"completed,omitempty"`

	// Rate is bytes per second.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Rate int64 `json:"rate,omitempty"`

	// Registries are the bytes of the last download that came from registries themselves.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Registries int64 `json:"registries,omitempty"`

	// Mirrors are the bytes of the last download that came from mirrors. The other bytes were on the node.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Mirrors int64 `json:"mirrors,omitempty"`

	// Pinned are the digests of the versions that are pinned, the newest first.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=atomic
	Pinned []string `json:"pinned,omitempty"`

	// Origin is the digest that the newest version has in its registry. Nodes that make different digests of one origin
	// have different settings.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Origin string `json:"origin,omitempty"`

	// Version is the digest of ModelVersion that the newest version was downloaded for, if it is not Origin.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Version string `json:"version,omitempty"`

	// Lookup is what this node was told about the tag, if it is the one that looks it up.
	// +optional
	Lookup *LookupState `json:"lookup,omitempty"`

	// Error is why the last attempt failed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`

	// Since is the time of the last change of the phase.
	Since metav1.Time `json:"since"`
}

// LookupState is the answer to the last question what a tag points to.
type LookupState struct {
	// Term is that of the ModelVersion for which the node asked.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Term int64 `json:"term"`

	// Digest is what the tag points to. Without it and Error, no digest says so.
	// +optional
	// +kubebuilder:validation:Pattern=`^(sha256:[0-9a-f]{64})?$`
	Digest string `json:"digest,omitempty"`

	// Error is why there is no answer.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`
}

// ModelNodeList is a list of ModelNodes.
//
// +kubebuilder:object:root=true
type ModelNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ModelNode `json:"items"`
}
