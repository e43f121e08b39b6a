package main

import (
	"context"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	core "k8s.io/api/core/v1"
	eventsapi "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A narrator makes events with the progress of downloads that pods wait for. ModelNodes have the downloads. Pods are
// read only while there are some.
type narrator struct {
	client client.Client
	direct client.Reader
	name   string                             // of the pod of the controller
	notes  map[string]map[types.UID]plan.Note // by node; one goroutine uses it
}

func (n *narrator) setup(mgr ctrl.Manager) error {
	n.client, n.direct, n.notes = mgr.GetClient(), mgr.GetAPIReader(), map[string]map[types.UID]plan.Note{}
	return ctrl.NewControllerManagedBy(mgr).Named("pods").For(&v1alpha1.ModelNode{}).Complete(n)
}

// Reconcile makes the events of the pods of a node.
func (n *narrator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var state v1alpha1.ModelNode
	if err := n.client.Get(ctx, req.NamespacedName, &state); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	if len(state.Status.Pulls) == 0 {
		delete(n.notes, req.Name)
		return reconcile.Result{}, nil
	}
	var pods core.PodList
	if err := n.direct.List(ctx, &pods, client.MatchingFields{"spec.nodeName": req.Name}); err != nil {
		return reconcile.Result{}, err
	}
	if n.notes[req.Name] == nil {
		n.notes[req.Name] = map[types.UID]plan.Note{}
	}
	now := time.Now()
	texts := plan.Progress(pods.Items, state.Status.Pulls, n.notes[req.Name], now)
	for _, p := range pods.Items {
		if text := texts[p.UID]; text != "" {
			if err := n.client.Create(ctx, n.event(&p, text, now)); err != nil { // the next one is made
				ctrl.LoggerFrom(ctx).Info("no event", "pod", p.Name, "namespace", p.Namespace, "err", err)
			}
		}
	}
	return reconcile.Result{}, nil
}

// event returns an event of a pod. An EventRecorder would count events with the same reason, and show the text of the
// first.
func (n *narrator) event(p *core.Pod, text string, now time.Time) *eventsapi.Event {
	return &eventsapi.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, GenerateName: "ballast-"},
		EventTime:  metav1.NewMicroTime(now), ReportingController: "ballast-fleet", ReportingInstance: n.name,
		Action: "Pull", Reason: "Downloading", Type: core.EventTypeNormal, Note: text,
		Regarding: core.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}
}
