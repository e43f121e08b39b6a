package cluster

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	eventsapi "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// weights returns incompressible bytes, the same for the same seed.
func weights(seed byte) []byte { return random(seed, 4<<20) }

// slowly is so much that it takes longer than patience at slowRate.
func slowly(seed byte) []byte { return random(seed, 64<<20) } // 17 minutes

// slowRate is the lowest rate of a set, in bytes a second.
const slowRate = 64 << 10

func random(seed byte, size int) []byte {
	p := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

// push pushes a model.
func push(t *testing.T, r *node.Registry, repository, tag string, weights []byte) {
	t.Helper()
	b := converttest.ModelPackRaw(converttest.Files(weights))
	r.Push(t, repository, tag, node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
}

// takeLease takes the lease away from the controller, for as long as one lasts.
func (c *cluster) takeLease(t *testing.T) {
	t.Helper()
	eventually(t, "the lease", func() error {
		var l coordination.Lease
		if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "ballast-fleet"}, &l); err != nil {
			return err
		}
		now := metav1.NowMicro()
		l.Spec.HolderIdentity, l.Spec.RenewTime = new("another controller"), &now
		return c.admin.Update(t.Context(), &l)
	})
}

func (c *cluster) private(t *testing.T) {
	r := node.StartRegistry(c.whole, c.whole.TempDir())
	r.User, r.Password = "team", "pull-secret-of-the-team"
	node.Belongs(r.Password, r.Host)
	push(t, r, "team/private", "v1", weights(9))
	ref := r.Ref("team/private", "v1")
	for _, n := range c.nodes {
		n.Upstream(t, r.Host, r.Host)
	}
	c.set(t, "other", v1alpha1.ModelSetSpec{Models: []string{ref}, PullSecrets: []string{"other"}})
	eventually(t, "the advice to allow the secret", func() error {
		if s := c.modelNode(t, "n1")[ref]; !strings.Contains(s.Error, "add it to fleet.pullSecrets") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	secret := &core.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "models"}, Type: core.SecretTypeDockerConfigJson}
	of := func(host string) map[string][]byte {
		config := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, base64.StdEncoding.EncodeToString([]byte(r.User+":"+r.Password)))
		return map[string][]byte{core.DockerConfigJsonKey: []byte(config)}
	}
	secret.Data = of("elsewhere.example")
	c.create(t, secret)
	c.update(t, "other", func(s *v1alpha1.ModelSet) { s.Spec.PullSecrets = []string{"models"} })
	eventually(t, "the secret to have no entry", func() error {
		if s := c.modelNode(t, "n1")[ref]; !strings.Contains(s.Error, "no entry for it in the pull secrets models") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.update(t, "other", func(s *v1alpha1.ModelSet) { s.Spec.PullSecrets = []string{"other", "models"} }) // one of which cannot be read
	secret.Data = of(r.Host)
	if err := c.admin.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	c.awaitSet(t, "other", "3/3 True")
	if _, err := c.nodes["n1"].cri.Pull(ref, ""); err == nil {
		t.Error("a pod without the secret has pulled the model")
	}
	if !c.nodes["n1"].listed(t, ref) {
		t.Error("the kubelet does not list the model")
	}
}

func (c *cluster) update(t *testing.T, name string, change func(*v1alpha1.ModelSet)) {
	t.Helper()
	eventually(t, "update of "+name, func() error {
		var s v1alpha1.ModelSet
		if err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, &s); err != nil {
			return err
		}
		change(&s)
		return c.admin.Update(t.Context(), &s)
	})
}

// limited has a set with a limit, which is then changed.
func (c *cluster) limited(t *testing.T, r *node.Registry) {
	push(t, r, "team/slow", "v1", slowly(5))
	ref := r.Ref("team/slow", "v1")
	c.set(t, "slow", v1alpha1.ModelSetSpec{Models: []string{ref}, NodeSelector: only("n2"), Rate: resource.NewQuantity(slowRate, resource.BinarySI)})
	eventually(t, "the begin of the download", func() error {
		if s := c.modelNode(t, "n2")[ref]; s.Phase != v1alpha1.PhaseDownloading {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	eventually(t, "the limit in the status", func() error {
		out := c.nodes["n2"].Ballast("status", "-o", "json")
		if strings.Contains(strings.ReplaceAll(out.Stdout, " ", ""), `"limit":"rate"`) {
			return nil
		}
		return fmt.Errorf("%s", out.Output())
	})
	c.update(t, "slow", func(s *v1alpha1.ModelSet) { s.Spec.Rate = nil })
	c.awaitSet(t, "slow", "1/1 True") // not with the limit
	if s := c.modelNode(t, "n2")[ref]; s.Registries < 4<<20 || s.Mirrors != 0 {
		t.Errorf("%+v", s)
	}
	if err := c.admin.Delete(t.Context(), &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}); err != nil {
		t.Fatal(err)
	}
}

// podWaits has a pod whose image volume is being downloaded. There is no kubelet: containerd pulls as for one.
func (c *cluster) podWaits(t *testing.T, r *node.Registry) {
	push(t, r, "team/awaited", "v1", slowly(6))
	ref := r.Ref("team/awaited", "v1")
	pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waits"}, Spec: core.PodSpec{
		NodeName: "n1", Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}},
		Containers: []core.Container{{Name: "c", Image: "x", VolumeMounts: []core.VolumeMount{{Name: "model", MountPath: "/model"}}}},
		Volumes:    []core.Volume{{Name: "model", VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: ref}}}},
	}}
	eventually(t, "the account of the pod", func() error { // a controller makes it
		return c.admin.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: "default"}, &core.ServiceAccount{})
	})
	c.create(t, pod)
	r.Wire.Link(slowRate, 0)
	defer r.Wire.Link(0, 0)
	pulled := make(chan error, 1)
	go func() {
		_, err := c.nodes["n1"].cri.Pull(ref, "")
		pulled <- err
	}()
	eventually(t, "an event of the pod", func() error {
		var all eventsapi.EventList
		if err := c.admin.List(t.Context(), &all, client.InNamespace("default")); err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.Regarding.UID == pod.UID && e.Reason == "Downloading" && strings.HasPrefix(e.Note, "downloading "+ref+": ") {
				t.Log(e.Note)
				return nil
			}
		}
		return fmt.Errorf("%d events", len(all.Items))
	})
	r.Wire.Link(0, 0)
	if err := <-pulled; err != nil {
		t.Error(err)
	}
	eventually(t, "the end of the pull", func() error {
		var is v1alpha1.ModelNode
		if err := c.admin.Get(t.Context(), client.ObjectKey{Name: "n1"}, &is); err != nil || len(is.Status.Pulls) > 0 {
			return fmt.Errorf("%w: %+v", err, is.Status.Pulls)
		}
		return nil
	})
	if err := c.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Error(err)
	}
}
