package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// providerName is the name under which this program is a credential provider of the kubelet, as clouds
// have: the kubelet runs it with an image on its standard input.
const providerName = "ballast-test-provider"

// providerSecret is the environment variable of the provider with its secret.
const providerSecret = "PROVIDER_SECRET"

// The private registries, by where the kubelet has their credentials.
const (
	nodeHost     = "node.example"     // in its own file
	providerHost = "provider.example" // from the provider
	closedHost   = "closed.example"   // none
)

// The fields of the exchange that are used.
// https://kubernetes.io/docs/reference/config-api/kubelet-credentialprovider.v1/
type (
	providerRequest struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Image      string `json:"image"`
	}
	providerResponse struct {
		APIVersion string              `json:"apiVersion"`
		Kind       string              `json:"kind"`
		CacheKey   string              `json:"cacheKeyType"`
		CacheFor   string              `json:"cacheDuration"`
		Auth       map[string]userPass `json:"auth"`
	}
	userPass struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
)

// provide answers one request of the kubelet.
func provide(in io.Reader, out io.Writer) error {
	var r providerRequest
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return err
	}
	if r.Kind != "CredentialProviderRequest" {
		return fmt.Errorf("a request of kind %q", r.Kind)
	}
	host, _, _ := strings.Cut(r.Image, "/")
	return json.NewEncoder(out).Encode(providerResponse{
		APIVersion: r.APIVersion, Kind: "CredentialProviderResponse", CacheKey: "Registry", CacheFor: "1m",
		Auth: map[string]userPass{host: {"provided", os.Getenv(providerSecret)}},
	})
}

// withCredentials starts the private registries and gives the kubelet its credentials.
func withCredentials(t *testing.T, k *kubelet) {
	const nodePassword, provided = "password-of-the-node", "password-of-the-provider"
	for host, login := range map[string]userPass{
		nodeHost: {"node", nodePassword}, providerHost: {"provided", provided}, closedHost: {"x", "password-of-nobody"},
	} {
		r := node.StartRegistry(t, t.TempDir())
		r.User, r.Password = login.Username, login.Password
		k.node.Upstream(t, host, r.Host)
		node.Belongs(login.Password, r.Host)
		b := private(host)
		r.Push(t, "team/model", "1", artifact(b))
	}
	write := func(name string, v any) string {
		p, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(k.dir, name)
		if err := os.WriteFile(file, p, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("config.json", map[string]any{"auths": map[string]userPass{nodeHost: {"node", nodePassword}}})
	config := write("providers.yaml", map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
		"providers": []any{map[string]any{
			"name": providerName, "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "defaultCacheDuration": "1m",
			"matchImages": []string{providerHost},
			"env":         []any{map[string]string{"name": providerSecret, "value": provided}},
		}},
	})
	bin := filepath.Join(k.dir, "providers")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, providerName)); err != nil {
		t.Fatal(err)
	}
	k.flags = append(k.flags, "--image-credential-provider-config", config, "--image-credential-provider-bin-dir", bin)
}

// private returns the model of a private registry.
func private(host string) *converttest.Built {
	return converttest.ModelPackRaw(converttest.Files(weights(byte(len(host)), 1<<20)))
}

// testPrivate mounts models of registries that require credentials: those of the node, from a provider,
// and none.
func testPrivate(t *testing.T, k *kubelet) {
	var pods []pod
	for _, host := range []string{nodeHost, providerHost} {
		pods = append(pods, k.pod("private-"+strings.TrimSuffix(host, ".example"), host+"/team/model:1", "Always"))
	}
	closed := k.pod("private-closed", closedHost+"/team/model:1", "IfNotPresent")
	k.apply(t, append(pods, closed)...)
	for i, host := range []string{nodeHost, providerHost} {
		k.awaitRunning(t, pods[i])
		k.wantFiles(t, pods[i].Metadata.Name, "main", "/model", states(private(host)))
	}
	wantMessage(t, k.awaitWaiting(t, "private-closed", "ErrImagePull", "ImagePullBackOff"), documented(t, "pull access denied"))

	// A model on the node is not shown to a pull without credentials; the kubelet provides them.
	again := k.pod("private-again", nodeHost+"/team/model:1", "IfNotPresent")
	k.run(t, again)
	k.wantFiles(t, "private-again", "main", "/model", states(private(nodeHost)))
}
