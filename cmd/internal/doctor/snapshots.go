package doctor

import (
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/api"
)

// snapshots checks the snapshots.
func (d *Doctor) snapshots(h *api.Health) {
	const check = "snapshots"
	if h == nil {
		return
	}
	s := &h.Snapshots
	if len(s.Aside) > 0 {
		d.warn(check, "remove the images of this snapshotter (ctr images rm --sync REF) and pull them again; then rm "+strings.Join(s.Aside, " "),
			"the metadata of the snapshots was damaged and was renamed: containerd has images whose snapshots are unknown")
	}
	if s.Unknown > 0 {
		d.warn(check, "restart or remove the containers in them; they are removed with the next image",
			"%d directories belong to no known snapshot, and stay while they are mounted", s.Unknown)
	}
	for _, p := range s.Problems {
		about := p.Path
		if about == "" {
			about = p.Table.String()
		}
		d.fail(check, "ballast verify --repair; if that does not help, remove the image (ctr images rm --sync REF) and pull it again",
			"snapshot %s, %s: %s", p.Snapshot, about, p.Problem)
	}
	if len(s.Aside)+s.Unknown+len(s.Problems) == 0 {
		d.ok(check, "the files of snapshots match their models")
	}
}
