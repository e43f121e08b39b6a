package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/distribution/reference"
	"github.com/dustin/go-humanize"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noteEvery is the shortest time between two events of a pod.
const noteEvery = 30 * time.Second

// A Note is the last event of a pod.
type Note struct {
	Tenths int64 // of the bytes
	At     time.Time
}

// Progress returns the messages for pods of a node that wait for pulls: one for each tenth of the bytes, and not more
// than one in 30 seconds. It changes notes, which are those of the node, and removes those of other pods.
func Progress(pods []core.Pod, pulls []v1alpha1.PullState, notes map[types.UID]Note, now time.Time) map[types.UID]string {
	out, waiting := map[types.UID]string{}, map[types.UID]bool{}
	for _, p := range pods {
		ref, s := waitsFor(&p, pulls)
		if ref == "" {
			continue
		}
		s.Completed = min(s.Completed, s.Total)
		waiting[p.UID] = true
		last, noted := notes[p.UID]
		tenths := 10 * s.Completed / s.Total
		if noted && (tenths <= last.Tenths || now.Sub(last.At) < noteEvery) {
			continue
		}
		notes[p.UID] = Note{tenths, now}
		text := fmt.Sprintf("downloading %s: %d %%, %s of %s", ref, 100*s.Completed/s.Total, humanize.Bytes(uint64(s.Completed)), humanize.Bytes(uint64(s.Total)))
		if s.Rate > 0 {
			text += fmt.Sprintf(", %s/s, %v left", humanize.Bytes(uint64(s.Rate)), timeFor(s.Total-s.Completed, s.Rate).Round(time.Second))
		}
		out[p.UID] = text
	}
	for uid := range notes {
		if !waiting[uid] {
			delete(notes, uid)
		}
	}
	return out
}

// waitsFor returns the image volume of a pod, and its pull, that has the most bytes to come; "" if there is none.
func waitsFor(p *core.Pod, pulls []v1alpha1.PullState) (ref string, s v1alpha1.PullState) {
	if p.Status.Phase != core.PodPending {
		return "", s
	}
	for _, v := range p.Spec.Volumes {
		if v.Image == nil {
			continue
		}
		want, err := reference.ParseDockerRef(v.Image.Reference) // as the kubelet and containerd read it
		if err != nil {
			continue
		}
		host, rest, _ := strings.Cut(want.String(), "/")
		name := strings.ToLower(host) + "/" + rest
		for _, pull := range pulls {
			if pull.Total > 0 && slices.Contains(pull.Refs, name) && (ref == "" || pull.Total-pull.Completed > s.Total-s.Completed) {
				ref, s = v.Image.Reference, pull
			}
		}
	}
	return ref, s
}
