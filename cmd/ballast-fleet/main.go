package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/agent"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process
	if err := root(os.Stdout).ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "ballast-fleet:", wire.Text(err))
		os.Exit(1)
	}
}

// An app has the flags of all commands.
type app struct {
	kubeconfig string
	log        *slog.Logger
	out        io.Writer
}

func root(out io.Writer) *cobra.Command {
	a := &app{log: slog.New(slog.NewTextHandler(out, nil)), out: out}
	c := &cobra.Command{
		Use: "ballast-fleet COMMAND", Short: "models on the nodes of a Kubernetes cluster",
		Version: wire.ThisVersion().Version, SilenceErrors: true, SilenceUsage: true,
	}
	c.PersistentFlags().StringVar(&a.kubeconfig, "kubeconfig", "", "`file` with the address of the API server (default: that of the pod)")
	c.AddCommand(a.agentCommand(), a.controllerCommand(), a.leaveCommand(), a.goneCommand())
	return c
}

// scheme has the types that the program reads and writes.
func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s))
}

// config returns how to reach the API server.
func (a *app) config() (*rest.Config, error) {
	ctrl.SetLogger(logr.FromSlogHandler(a.log.Handler()))
	c, err := clientcmd.BuildConfigFromFlags("", a.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no API server; outside of a pod, use --kubeconfig: %w", err)
	}
	c.UserAgent = "ballast-fleet/" + wire.ThisVersion().Version
	return c, nil
}

// client returns a client without watches.
func (a *app) client() (client.Client, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	s, err := scheme()
	if err != nil {
		return nil, err
	}
	return client.New(c, client.Options{Scheme: s})
}

// manager returns a manager with the watches of o.
func (a *app) manager(o manager.Options) (manager.Manager, error) {
	c, err := a.config()
	if err != nil {
		return nil, err
	}
	if o.LeaderElection { // the controller: not 5 requests a second, as each agent; the API server knows what is fair
		c.QPS = -1
	}
	if o.Scheme, err = scheme(); err != nil {
		return nil, err
	}
	o.Logger, o.Metrics = logr.FromSlogHandler(a.log.Handler()), server.Options{BindAddress: "0"} // see serveMetrics
	return ctrl.NewManager(c, o)
}

func (a *app) agentCommand() *cobra.Command {
	var ag agent.Agent
	var metrics string
	c := &cobra.Command{
		Use:   "agent",
		Short: "label the node, and have the daemon fetch the models of its ModelSets; runs until SIGTERM",
		Long: `Label the node and remove its startup taint when the daemon is ready, and report when it is not ready any
more. The label stays while the daemon restarts, because complete models need no daemon. "leave" removes it.

With --models, the daemon fetches and pins the models of all ModelSets that select the node.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ag.Refresh < time.Second {
				return fmt.Errorf("--refresh %v is less than a second", ag.Refresh)
			}
			ag.Log = a.log
			return ag.Run(cmd.Context(), func(o manager.Options) (manager.Manager, error) {
				mgr, err := a.manager(o)
				if err != nil {
					return nil, err
				}
				return mgr, serveMetrics(mgr, metrics, &ag)
			})
		},
	}
	f := c.Flags()
	nodeFlags(c, &ag.Node, &ag.Marks)
	f.StringVar(&ag.Socket, "socket", "/run/ballast/fleet/fleet.sock", "`socket` of ballastd")
	f.BoolVar(&ag.Models, "models", false, "fetch the models of ModelSets")
	f.BoolVar(&ag.Hold, "hold", false, "keep the startup taint until the node has its models")
	f.StringVar(&ag.Handler, "runtime-handler", "", "runtime `handler` of the pods that use models")
	f.StringVar(&ag.Namespace, "namespace", "ballast-system", "`namespace` of pull secrets")
	f.DurationVar(&ag.Refresh, "refresh", 10*time.Minute, "how often tags are looked up")
	f.StringVar(&metrics, "metrics", "0", "`address` for metrics, such as :9758; 0: none")
	return c
}

func nodeFlags(c *cobra.Command, node *string, m *agent.Marks) {
	f := c.Flags()
	f.StringVar(node, "name", "", "`name` of the node; empty: do not ask the API server")
	f.StringVar(&m.Label, "label", "", "`key` of the label for nodes with ballast")
	f.StringVar(&m.Taint, "taint", "", "`key` of the taint for nodes until ballast is ready")
}

func (a *app) controllerCommand() *cobra.Command {
	var namespace, pods, metrics, health, page string
	var podEvents bool
	c := &cobra.Command{
		Use:   "controller",
		Short: "tell agents which versions of models they have, count nodes, and show them and downloads; runs until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := &controller{}
			if pods != "" {
				selector, err := labels.Parse(pods)
				if err != nil {
					return fmt.Errorf("--pods: %w", err)
				}
				c.pods = selector
			}
			mgr, err := a.manager(manager.Options{
				LeaderElection: true, LeaderElectionID: "ballast-fleet", LeaderElectionNamespace: namespace, LeaderElectionReleaseOnCancel: true,
				HealthProbeBindAddress: health, Cache: c.cacheOptions(namespace),
			})
			if err != nil {
				return err
			}
			if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
				return err
			}
			if err := errors.Join(c.setup(mgr), serveMetrics(mgr, metrics, c)); err != nil {
				return err
			}
			if podEvents {
				host, err := os.Hostname()
				if err != nil {
					return err
				}
				if err := (&narrator{name: host}).setup(mgr); err != nil {
					return err
				}
			}
			if page != "" {
				if err := c.servePage(mgr, page); err != nil {
					return err
				}
			}
			return mgr.Start(cmd.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&namespace, "namespace", "ballast-system", "`namespace` of the lease of the leader and of the pods")
	f.StringVar(&pods, "pods", "", "label `selector` of the pods of the DaemonSet: only nodes with one count (default: all nodes)")
	f.StringVar(&metrics, "metrics", "0", "`address` for metrics, such as :9759; 0: none")
	f.StringVar(&health, "health", "0", "`address` for probes of /healthz and /readyz, such as :9760; 0: none")
	f.BoolVar(&podEvents, "pod-events", false, "make events with the progress of downloads on pods that wait for them")
	f.StringVar(&page, "page", "", "`address` for the page with all sets, such as 127.0.0.1:8080, without authentication (default: none)")
	return c
}
