// Package v1alpha1 has the objects by which a cluster says which models its nodes have, and the nodes say which they
// do have.
//
// A ModelSet is written by an administrator, its status by the controller. A ModelNode is the state of one node,
// written by the agent of that node only, and removed with the node. All three are cluster-wide.
//
// The definitions in the Helm chart and the functions in zz_generated.deepcopy.go are made from these types by
// controller-gen (make crds).
//
// +kubebuilder:object:generate=true
// +groupName=ballast.dev
package v1alpha1
