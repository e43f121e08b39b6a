package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"
)

// tries limits the attempts of a change after concurrent changes of the node.
const tries = 5

// Node is a node as far as this package uses it.
type Node struct {
	Metadata struct {
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Taints []Taint `json:"taints"`
	} `json:"spec"`
}

// Taint is a taint of a node.
type Taint struct {
	Key string `json:"key"`
}

// Marks are the label of a node with ballast, and the taint of one without. An empty one is not
// used.
type Marks struct {
	Label string // key; its value is "true"
	Taint string // key, with any effect
}

// Node returns a node.
func (c *Client) Node(ctx context.Context, name string) (n Node, err error) {
	return n, c.call(ctx, http.MethodGet, "", nil, &n, "api/v1/nodes", name)
}

// Join labels a node and removes the taint. It reports whether it changed the node.
func (c *Client) Join(ctx context.Context, name string, m Marks) (bool, error) {
	return c.change(ctx, name, func(n Node) []operation { return join(n, m) })
}

// Leave removes the label of a node. The taint, which is set by the creator of the node, does not
// come back.
func (c *Client) Leave(ctx context.Context, name string, m Marks) (bool, error) {
	return c.change(ctx, name, func(n Node) []operation { return leave(n, m) })
}

// change patches a node until edit returns no operations.
func (c *Client) change(ctx context.Context, name string, edit func(Node) []operation) (bool, error) {
	var last error
	for range tries {
		n, err := c.Node(ctx, name)
		if err != nil {
			return false, err
		}
		ops := edit(n)
		if len(ops) == 0 {
			return false, nil
		}
		body, err := json.Marshal(ops)
		if err != nil {
			return false, err
		}
		last = c.call(ctx, http.MethodPatch, "application/json-patch+json", body, new(Node), "api/v1/nodes", name)
		if last == nil || !errdefs.IsConflict(last) {
			return last == nil, last
		}
	}
	return false, fmt.Errorf("the node was changed by others at each attempt: %w", last)
}

// An operation is one operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

// join returns the operations that mark a node.
func join(n Node, m Marks) []operation {
	var ops []operation
	if m.Label != "" && n.Metadata.Labels[m.Label] != "true" {
		ops = append(ops, operation{"add", labelPath(m.Label), "true"})
	}
	if m.Taint == "" {
		return ops
	}
	for i := len(n.Spec.Taints) - 1; i >= 0; i-- { // the last first, so that the indexes of the others stay valid
		if n.Spec.Taints[i].Key == m.Taint {
			path := fmt.Sprintf("/spec/taints/%d", i)
			ops = append(ops, operation{"test", path + "/key", m.Taint}, operation{"remove", path, ""})
		}
	}
	return ops
}

// leave returns the operations that remove our label from a node.
func leave(n Node, m Marks) []operation {
	if _, ok := n.Metadata.Labels[m.Label]; m.Label == "" || !ok {
		return nil
	}
	return []operation{{"remove", labelPath(m.Label), ""}}
}

// labelPath returns the JSON pointer (RFC 6901) of a label.
func labelPath(key string) string {
	return "/metadata/labels/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// DaemonSet is the progress of the pods of a DaemonSet.
type DaemonSet struct {
	Desired int // nodes that should have a pod
	Ready   int // nodes with a ready pod of the newest template
	Known   bool
}

// DaemonSet returns the progress of the pods of a DaemonSet. Known is false until its controller
// has processed it.
func (c *Client) DaemonSet(ctx context.Context, namespace, name string) (DaemonSet, error) {
	var v struct {
		Metadata struct {
			Generation int64 `json:"generation"`
		} `json:"metadata"`
		Status struct {
			ObservedGeneration int64 `json:"observedGeneration"`
			Desired            int   `json:"desiredNumberScheduled"`
			Updated            int   `json:"updatedNumberScheduled"`
			Ready              int   `json:"numberReady"`
		} `json:"status"`
	}
	if err := c.call(ctx, http.MethodGet, "", nil, &v, "apis/apps/v1/namespaces", namespace, "daemonsets", name); err != nil {
		return DaemonSet{}, err
	}
	s := v.Status
	return DaemonSet{s.Desired, min(s.Ready, s.Updated), s.ObservedGeneration >= v.Metadata.Generation}, nil
}
