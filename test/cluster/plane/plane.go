// Package plane runs the control plane of a Kubernetes cluster: etcd, an API server, the scheduler and
// the controllers. The programs are built by test/kubernetes/build.sh --all.
package plane

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// Options are the settings of a Plane.
type Options struct {
	// Tools is the directory with the programs.
	Tools string

	// Address is another address by which the nodes reach the API server, and Services the network of services, whose
	// first address it is. Without one it is 127.0.0.1.
	Address, Services string

	// Listen is the address and port of the API server, which then reaches kubelets by their addresses. It is a free
	// port of the loopback device by default, and kubelets are reached by the names of their nodes.
	Listen string

	// Nodes are the names of nodes with the token of a kubelet, "node-NAME".
	Nodes []string

	// Grace is how long a node may be silent; 0: the default.
	Grace time.Duration
}

// A Plane is a control plane. The token of its administrator is "admin".
type Plane struct {
	Authority []byte // the certificate of the API server's issuer
	Address   string // of the API server

	dir     string
	options Options
	etcd    string
	api     *node.Process
}

// Start starts a control plane and waits until it answers.
func Start(t node.TB, dir string, o Options) *Plane {
	t.Helper()
	p := &Plane{Address: o.Listen, dir: dir, options: o, etcd: "http://" + node.FreeAddress(t)}
	if p.Address == "" {
		p.Address = node.FreeAddress(t)
	}
	names := []string{"127.0.0.1"}
	if o.Address != "" {
		names = append([]string{o.Address}, names...)
	}
	var cert, key []byte
	p.Authority, cert, key = node.Certificates(t, names...)
	tokens := "admin,admin,1,system:masters\ncontrollers,system:kube-controller-manager,2\nscheduler,system:kube-scheduler,3\n"
	for i, n := range o.Nodes {
		tokens += fmt.Sprintf("node-%s,system:node:%[1]s,n%d,system:nodes\n", n, i)
	}
	for name, content := range map[string]string{
		"ca": string(p.Authority), "cert": string(cert), "key": string(key), "tokens": tokens,
		"controllers": p.Kubeconfig(p.Address, "controllers"), "scheduler": p.Kubeconfig(p.Address, "scheduler"),
	} {
		if err := os.WriteFile(p.in(name), []byte(content), 0o600); err != nil {
			t.Fatalf("%v", err)
		}
	}
	peers := "http://" + node.FreeAddress(t)
	p.start(t, "etcd", "--data-dir", p.in("etcd"), "--unsafe-no-fsync", "--heartbeat-interval", "500", "--election-timeout", "10000", // a busy machine may need seconds for an answer
		"--listen-client-urls", p.etcd, "--advertise-client-urls", p.etcd,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	p.StartAPI(t)
	p.start(t, "kube-controller-manager", "--kubeconfig", p.in("controllers"), "--leader-elect=false", "--use-service-account-credentials",
		"--bind-address", "127.0.0.1", "--secure-port", port(t, node.FreeAddress(t)), "--service-account-private-key-file", p.in("key"), "--root-ca-file", p.in("ca"),
		"--node-monitor-grace-period", cmp.Or(o.Grace, 50*time.Second).String())
	p.start(t, "kube-scheduler", "--kubeconfig", p.in("scheduler"), "--leader-elect=false", "--bind-address", "127.0.0.1", "--secure-port", port(t, node.FreeAddress(t)))
	return p
}

func (p *Plane) in(name string) string { return filepath.Join(p.dir, name) }

func (p *Plane) start(t node.TB, name string, args ...string) *node.Process {
	t.Helper()
	program := filepath.Join(p.options.Tools, name)
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v; run `test/kubernetes/build.sh --all`", err)
	}
	return node.Keep(t, name, p.in(name+".log"), nil, []int{1, 255}, append([]string{program}, args...)...)
}

// StartAPI starts or restarts the API server and waits until it answers.
func (p *Plane) StartAPI(t node.TB) {
	t.Helper()
	host, _, err := net.SplitHostPort(p.Address)
	if err != nil {
		t.Fatalf("%v", err)
	}
	services, address := "10.96.0.0/24", "127.0.0.1"
	if p.options.Address != "" {
		services, address = p.options.Services, p.options.Address
	}
	kubelets := "Hostname"
	if p.options.Listen != "" {
		kubelets = "InternalIP"
	}
	p.api = p.start(t, "kube-apiserver", "--kubelet-preferred-address-types", kubelets, "--etcd-servers", p.etcd, "--bind-address", host, "--secure-port", port(t, p.Address),
		"--advertise-address", address, "--endpoint-reconciler-type", "none", "--service-cluster-ip-range", services, "--tls-cert-file", p.in("cert"), "--tls-private-key-file", p.in("key"),
		"--token-auth-file", p.in("tokens"), "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--allow-privileged",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", p.in("key"), "--service-account-signing-key-file", p.in("key"))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.Authority)
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer c.CloseIdleConnections()
	p.api.WaitReady(t, func() error {
		req, err := http.NewRequest(http.MethodGet, "https://"+p.Address+"/readyz", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer admin")
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET /readyz: %s", resp.Status)
		}
		return nil
	})
}

// StopAPI stops the API server.
func (p *Plane) StopAPI(t node.TB) { p.api.Stop(t) }

// APIPid returns the process of the API server.
func (p *Plane) APIPid() int { return p.api.Pid() }

// Kubeconfig is the configuration of a client with a token.
func (p *Plane) Kubeconfig(server, token string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
 "clusters": [{"name": "c", "cluster": {"server": "https://%s", "certificate-authority-data": %q}}],
 "users": [{"name": "u", "user": {"token": %q}}],
 "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`, server, base64.StdEncoding.EncodeToString(p.Authority), token)
}

func port(t node.TB, address string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}
