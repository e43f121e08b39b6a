// Package policy tests the admission policy of the chart with the API server's own code.
package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/chart"
	admissionapi "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apicel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// compile compiles a policy as the API server does when it is stored.
func compile(t *testing.T, p *admissionapi.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	with := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, with, environment.NewExpressions)
	var conditions, validations []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
	}
	compiled := func(e []cel.ExpressionAccessor) cel.ConditionEvaluator {
		f := compiler.CompileCondition(e, with, environment.NewExpressions)
		for _, err := range f.CompilationErrors() {
			t.Fatal(err)
		}
		return f
	}
	matcher := matchconditions.NewMatcher(compiled(conditions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	return validating.NewValidator(compiled(validations), matcher, compiled(nil), compiled(nil), p.Spec.FailurePolicy, nil)
}

func nodeWith(labels map[string]string, taints ...string) *core.Node {
	n := &core.Node{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: meta.ObjectMeta{Name: "n1", Labels: labels}}
	for _, k := range taints {
		n.Spec.Taints = append(n.Spec.Taints, core.Taint{Key: k, Effect: core.TaintEffectNoSchedule})
	}
	return n
}

const (
	label = "ballast.dev/node"
	taint = "ballast.dev/not-ready"
)

// TestPolicy checks changes of a node by the service account of the chart, and by others.
func TestPolicy(t *testing.T) {
	for _, fleet := range []bool{false, true} {
		docs, err := chart.Render("../"+chart.Dir, map[string]any{"fleet": map[string]any{"enabled": fleet}})
		if err != nil {
			t.Fatal(err)
		}
		testPolicies(t, docs, fleet)
	}
}

func testPolicies(t *testing.T, docs map[string][]string, fleet bool) {
	found := 0
	for _, file := range []string{"account.yaml", "remove.yaml"} {
		objects, err := chart.Objects(docs[file])
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if p, ok := o.Typed.(*admissionapi.ValidatingAdmissionPolicy); ok {
				found++
				t.Run(fmt.Sprintf("%s, fleet %t", p.Name, fleet), func(t *testing.T) { testPolicy(t, p) })
			}
		}
	}
	if found != 2 {
		t.Errorf("%d policies", found)
	}
}

func testPolicy(t *testing.T, p *admissionapi.ValidatingAdmissionPolicy) {
	validator := compile(t, p)
	old := nodeWith(map[string]string{"a": "b"}, "x", taint, "y")
	whole := nodeWith(nil, taint)
	whole.Spec.ProviderID, whole.Spec.PodCIDR, whole.Spec.PodCIDRs = "a://b", "10.0.0.0/24", []string{"10.0.0.0/24"}
	account := "system:serviceaccount:ballast-system:" + p.Name
	for name, tt := range map[string]struct {
		user, node string
		operation  admission.Operation
		sub        string
		old        *core.Node
		change     func(n *core.Node)
		refused    string // "" means allowed
	}{
		"nothing": {change: func(n *core.Node) {}},
		"both": {change: func(n *core.Node) {
			n.Labels[label] = "true"
			n.Spec.Taints = []core.Taint{n.Spec.Taints[0], n.Spec.Taints[2]}
		}},
		"label":             {change: func(n *core.Node) { n.Labels[label] = "true" }},
		"no label":          {old: nodeWith(map[string]string{"a": "b", label: "true"}), change: func(n *core.Node) { delete(n.Labels, label) }},
		"last taint":        {old: nodeWith(nil, taint), change: func(n *core.Node) { n.Spec.Taints = nil }},
		"other node":        {node: "n2", change: func(n *core.Node) { n.Labels[label] = "true" }, refused: "its own node"},
		"no node":           {node: "-", change: func(n *core.Node) { n.Labels[label] = "true" }, refused: "its own node"},
		"other user":        {user: "system:serviceaccount:ballast-system:other", node: "-", change: func(n *core.Node) { n.Spec.Taints = nil }},
		"other label":       {change: func(n *core.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, refused: "only the label"},
		"label of a set":    {change: func(n *core.Node) { n.Labels["models.ballast.dev/chat"] = "ready" }},
		"no label of a set": {old: nodeWith(map[string]string{"models.ballast.dev/chat": "ready"}), change: func(n *core.Node) { n.Labels = nil }},
		"changed label":     {change: func(n *core.Node) { n.Labels["a"] = "c" }, refused: "only the label"},
		"removed label":     {change: func(n *core.Node) { delete(n.Labels, "a") }, refused: "only the label"},
		"other taint":       {change: func(n *core.Node) { n.Spec.Taints = n.Spec.Taints[1:] }, refused: "only the taint"},
		"all taints":        {change: func(n *core.Node) { n.Spec.Taints = nil }, refused: "only the taint"},
		"new taint": {change: func(n *core.Node) {
			n.Spec.Taints = append(n.Spec.Taints, core.Taint{Key: taint, Effect: core.TaintEffectNoExecute})
		}, refused: "only the taint"},
		"changed taint": {change: func(n *core.Node) { n.Spec.Taints[0].Effect = core.TaintEffectNoExecute }, refused: "only the taint"},
		"cordon":        {change: func(n *core.Node) { n.Spec.Unschedulable = true }, refused: "nothing but"},
		"annotation":    {change: func(n *core.Node) { n.Annotations = map[string]string{"a": "b"} }, refused: "nothing but"},
		"finalizer":     {change: func(n *core.Node) { n.Finalizers = []string{"a.example/b"} }, refused: "nothing but"},
		"owner":         {change: func(n *core.Node) { n.OwnerReferences = []meta.OwnerReference{{Kind: "Pod", Name: "x"}} }, refused: "nothing but"},
		"provider":      {change: func(n *core.Node) { n.Spec.ProviderID = "a://b" }, refused: "nothing but"},
		"network":       {change: func(n *core.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.0.0/24", []string{"10.0.0.0/24"} }, refused: "nothing but"},
		"whole node":    {old: whole, change: func(n *core.Node) { n.Labels = map[string]string{label: "true"} }},
		"status":        {sub: "status", change: func(n *core.Node) {}, refused: "may be changed"},
		"delete":        {operation: admission.Delete, change: func(n *core.Node) {}, refused: "may be changed"},
	} {
		before := old
		if tt.old != nil {
			before = tt.old
		}
		after := before.DeepCopy()
		tt.change(after)
		info := &user.DefaultInfo{Name: account, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}}
		switch tt.node {
		case "":
		case "-":
			info.Extra = nil
		default:
			info.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {tt.node}}
		}
		if tt.user != "" {
			info.Name = tt.user
		}
		if tt.operation == "" {
			tt.operation = admission.Update
		}
		got := refusals(t, validator, tt.operation, tt.sub, before, after, info)
		if (tt.refused == "") != (got == "") || !strings.Contains(got, tt.refused) {
			t.Errorf("%s: got %q, want %q", name, got, tt.refused)
		}
	}
}

// refusals returns why a request is refused, or "".
func refusals(t *testing.T, v validating.Validator, op admission.Operation, sub string, before, after *core.Node, info user.Info) string {
	t.Helper()
	gvk, gvr := core.SchemeGroupVersion.WithKind("Node"), schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	var object runtime.Object = after
	if op == admission.Delete {
		object = nil
	}
	attributes := admission.NewAttributesRecord(object, before, gvk, "", "n1", gvr, sub, op, &meta.UpdateOptions{}, false, info)
	scheme := runtime.NewScheme()
	if err := core.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	versioned, err := admission.NewVersionedAttributes(attributes, gvk, admission.NewObjectInterfacesFromScheme(scheme))
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for _, d := range v.Validate(t.Context(), gvr, versioned, nil, nil, apicel.RuntimeCELCostBudget, nil).Decisions {
		if d.Action == validating.ActionDeny {
			messages = append(messages, d.Message)
			if d.Reason != meta.StatusReasonForbidden && op != admission.Delete {
				t.Errorf("%s: reason %s", d.Message, d.Reason)
			}
		}
	}
	return strings.Join(messages, "; ")
}
