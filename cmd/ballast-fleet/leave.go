package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/agent"
	"github.com/spf13/cobra"
	apps "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func (a *app) leaveCommand() *cobra.Command {
	var node string
	var m agent.Marks
	var stay bool
	c := &cobra.Command{
		Use:   "leave",
		Short: "remove the labels of the node; for uninstalling",
		Args:  cobra.NoArgs,
	}
	nodeFlags(c, &node, &m)
	c.Flags().BoolVar(&stay, "stay", false, "then wait for SIGTERM, because a container of a DaemonSet must not end")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if node != "" {
			k, err := a.client()
			if err != nil {
				return err
			}
			if err := m.Leave(cmd.Context(), k, node); err != nil {
				return err
			}
		}
		fmt.Fprintln(a.out, "ballast was removed from this node")
		if stay {
			<-cmd.Context().Done()
		}
		return nil
	}
	return c
}

func (a *app) goneCommand() *cobra.Command {
	var set client.ObjectKey
	c := &cobra.Command{
		Use:   "gone --namespace NAMESPACE --daemonset NAME",
		Short: "wait until the pods of a DaemonSet have removed ballast from all nodes; for uninstalling",
		Args:  cobra.NoArgs,
	}
	c.Flags().StringVar(&set.Namespace, "namespace", "", "`namespace` of the DaemonSet")
	c.Flags().StringVar(&set.Name, "daemonset", "", "`name` of the DaemonSet")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if set.Namespace == "" || set.Name == "" {
			return errors.New("use --namespace and --daemonset")
		}
		k, err := a.client()
		if err != nil {
			return err
		}
		return a.waitGone(cmd.Context(), k, set)
	}
	return c
}

// waitGone waits until all pods of a DaemonSet are ready, and prints how many are.
func (a *app) waitGone(ctx context.Context, k client.Reader, set client.ObjectKey) error {
	said := ""
	for {
		var d apps.DaemonSet
		err := k.Get(ctx, set, &d)
		ready := min(d.Status.NumberReady, d.Status.UpdatedNumberScheduled)
		state := "waiting for the DaemonSet"
		switch {
		case errors.Is(err, context.Canceled), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsNotFound(err):
			return err
		case err != nil:
			state = err.Error()
		case d.Status.ObservedGeneration < d.Generation:
		case ready >= d.Status.DesiredNumberScheduled:
			fmt.Fprintf(a.out, "removed from all %d nodes\n", d.Status.DesiredNumberScheduled)
			return nil
		default:
			state = fmt.Sprintf("removed from %d of %d nodes; kubectl -n %s get pods shows the other nodes, the logs of their pods why",
				ready, d.Status.DesiredNumberScheduled, set.Namespace)
		}
		if state != said {
			fmt.Fprintln(a.out, state)
			said = state
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}
