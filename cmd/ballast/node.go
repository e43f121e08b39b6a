package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/kube"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
)

// The intervals between checks of the daemon and of the node.
const (
	lookDaemon = 5 * time.Second
	lookNode   = 10 * time.Minute // others may restore the taint, or remove the label
)

// A cluster has the flags of the commands below "node".
type cluster struct {
	server, account string
	node            string
	marks           kube.Marks
}

func (a *app) nodeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:    "node COMMAND",
		Short:  "label this node in Kubernetes; for the pods of the chart",
		Hidden: true,
	}
	c.AddCommand(a.nodeReadyCommand(), a.nodeWatchCommand(), a.nodeLeaveCommand(), a.nodeGoneCommand())
	return group(c)
}

func (c *cluster) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&c.server, "server", "", "address of the API server, host:port (default: from the environment of the container)")
	f.StringVar(&c.account, "account", kube.DefaultAccount, "directory with the files of the service account")
}

func (c *cluster) nodeFlags(cmd *cobra.Command) {
	c.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.node, "name", "", "name of the node; empty: do not change the node")
	f.StringVar(&c.marks.Label, "label", "", "key of the label for nodes with ballast")
	f.StringVar(&c.marks.Taint, "taint", "", "key of the taint for nodes until ballast is ready")
}

// client returns a client of the API server.
func (c *cluster) client() (*kube.Client, error) {
	server := c.server
	if server == "" {
		server = config.KubernetesService()
	}
	if server == "" {
		return nil, usage("this is not a container of Kubernetes: use --server")
	}
	return kube.NewClient(server, c.account)
}

// idle reports whether there is nothing to change in the cluster.
func (c *cluster) idle() bool { return c.node == "" || c.marks == kube.Marks{} }

func (a *app) nodeReadyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ready",
		Short: "check that the daemon of this version serves models; for probes",
		Args:  cobra.NoArgs,
		RunE: a.asks(func(cmd *cobra.Command, cl *api.Client, _ []string) error {
			return daemonReady(cmd.Context(), cl)
		}),
	}
}

// daemonReady returns why the daemon does not serve models, or that it is not of this command's
// version.
func daemonReady(ctx context.Context, cl *api.Client) error {
	h, err := cl.Health(ctx)
	switch ours := api.ThisVersion().Version; {
	case err != nil:
		return err
	case h.Version.Version != ours:
		return fmt.Errorf("ballastd is version %s, this is %s: %w", h.Version.Version, ours, errdefs.ErrUnavailable)
	case h.ContainerdError != "":
		return fmt.Errorf("containerd does not answer ballastd: %s: %w", h.ContainerdError, errdefs.ErrUnavailable)
	case !h.ContainerdLoaded:
		return fmt.Errorf("containerd has not loaded ballast: restart it: %w", errdefs.ErrUnavailable)
	case h.FacadeHealth.Error != "":
		return fmt.Errorf("the facade does not answer: %s: %w", h.FacadeHealth.Error, errdefs.ErrUnavailable)
	}
	return nil
}

func (a *app) nodeWatchCommand() *cobra.Command {
	var cl cluster
	c := &cobra.Command{
		Use:   "watch",
		Short: "label the node and remove its startup taint when the daemon is ready; runs until SIGTERM",
		Long: `Label the node and remove its startup taint when the daemon is ready, and report when it is not ready any
more. The label stays while the daemon restarts, because complete models need no daemon. "node leave" removes
the label.`,
		Args: cobra.NoArgs,
	}
	cl.nodeFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		daemon, err := a.client()
		if err != nil {
			return err
		}
		defer daemon.Close()
		w := watcher{app: a, cluster: &cl, daemon: daemon}
		return w.run(cmd.Context())
	}
	return c
}

// A watcher checks the daemon, and updates the node in the API server.
type watcher struct {
	*app
	*cluster
	daemon *api.Client
	api    *kube.Client
	said   string    // the last message about the daemon
	next   time.Time // time of the next check of the node
}

// run watches until ctx ends, which is not an error.
func (w *watcher) run(ctx context.Context) error {
	if !w.idle() {
		var err error
		if w.api, err = w.cluster.client(); err != nil {
			return err
		}
		defer w.api.Close()
	}
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookDaemon):
		}
	}
}

// look makes one check.
func (w *watcher) look(ctx context.Context) {
	state := "ballastd is ready"
	err := daemonReady(ctx, w.daemon)
	if err != nil {
		state = "ballastd is not ready: " + api.Text(err)
	}
	if ctx.Err() != nil {
		return
	}
	if state != w.said {
		w.tell(state)
		w.said = state
	}
	if err != nil || w.api == nil || time.Now().Before(w.next) {
		return
	}
	changed, err := w.api.Join(ctx, w.node, w.marks)
	if err != nil {
		w.tell(fmt.Sprintf("node %s: %s", w.node, api.Text(err)))
		return // retried at the next check
	}
	if changed {
		w.tell(fmt.Sprintf("node %s has its label, and no startup taint", w.node))
	}
	w.next = time.Now().Add(lookNode + rand.N(lookNode/2)) // random, so that nodes do not check at the same time
}

func (a *app) tell(line string) { fmt.Fprintln(a.stdout, printable(line)) }

func (a *app) nodeLeaveCommand() *cobra.Command {
	var cl cluster
	var stay bool
	c := &cobra.Command{
		Use:   "leave",
		Short: "remove the label of the node; for uninstalling",
		Args:  cobra.NoArgs,
	}
	cl.nodeFlags(c)
	c.Flags().BoolVar(&stay, "stay", false, "then wait for SIGTERM, because a container of a DaemonSet must not end")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if !cl.idle() {
			k, err := cl.client()
			if err != nil {
				return err
			}
			defer k.Close()
			if _, err := k.Leave(cmd.Context(), cl.node, cl.marks); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		a.tell("ballast was removed from this node")
		if stay {
			<-cmd.Context().Done()
		}
		return nil
	}
	return c
}

func (a *app) nodeGoneCommand() *cobra.Command {
	var cl cluster
	var namespace, name string
	c := &cobra.Command{
		Use:   "gone --namespace NAMESPACE --daemonset NAME",
		Short: "wait until the pods of a DaemonSet have removed ballast from all nodes; for uninstalling",
		Args:  cobra.NoArgs,
	}
	cl.flags(c)
	c.Flags().StringVar(&namespace, "namespace", "", "namespace of the DaemonSet")
	c.Flags().StringVar(&name, "daemonset", "", "name of the DaemonSet")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if namespace == "" || name == "" {
			return usage("use --namespace and --daemonset")
		}
		k, err := cl.client()
		if err != nil {
			return err
		}
		defer k.Close()
		return a.waitGone(cmd.Context(), k, namespace, name)
	}
	return c
}

// waitGone waits until all pods of a DaemonSet are ready, and prints how many are.
func (a *app) waitGone(ctx context.Context, k *kube.Client, namespace, name string) error {
	said := ""
	for {
		s, err := k.DaemonSet(ctx, namespace, name)
		var state string
		switch {
		case errors.Is(err, context.Canceled), errdefs.IsPermissionDenied(err), errdefs.IsNotFound(err):
			return err
		case err != nil:
			state = api.Text(err)
		case s.Known && s.Ready >= s.Desired:
			a.tell(fmt.Sprintf("removed from all %d nodes", s.Desired))
			return nil
		case s.Known:
			state = fmt.Sprintf("removed from %d of %d nodes; kubectl -n %s get pods shows the other nodes, the logs of their pods why", s.Ready, s.Desired, namespace)
		default:
			state = "waiting for the DaemonSet"
		}
		if state != said {
			a.tell(state)
			said = state
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}
