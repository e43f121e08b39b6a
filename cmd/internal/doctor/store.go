package doctor

import (
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// rebuiltFor is how long the rebuild of a database is reported.
const rebuiltFor = 30 * 24 * time.Hour

// store reports the store's doubts.
func (d *Doctor) store(h *wire.Health) {
	const check = "store"
	if h == nil {
		return
	}
	x, well := &h.Doubts, true
	if n := len(x.Unresolved); n > 0 {
		well = false
		d.Fail(check, "ballast verify --repair; pull again what it cannot repair",
			"the file tables of %d references are lost, for example of %s: nothing is removed to free space until they are restored", n, x.Unresolved[0].Name)
	}
	if n := len(x.Damaged); n > 0 {
		well = false
		d.Fail(check, "ballast verify --repair; ballast gc removes what no model needs",
			"%d damaged files were moved away, for example %s: models that need them cannot be read (\"ballast ls\" names them)", n, x.Damaged[0])
	}
	if n := len(x.SetAside); n > 0 {
		well = false
		d.Warn(check, "compare ballast pin ls with what should be pinned, and pin again; then rm "+strings.Join(x.SetAside, " "),
			"the database was damaged and was renamed to %s: pins can be lost; models were found again", x.SetAside[n-1])
	} else if !x.Rebuilt.IsZero() && time.Since(x.Rebuilt) < rebuiltFor {
		well = false
		d.Warn(check, "compare ballast pin ls with what should be pinned, and pin again",
			"the database was lost before %s: earlier pins are lost; models were found again", x.Rebuilt.Local().Format(time.DateTime))
	}
	if x.Unrecorded > 0 {
		well = false
		d.Warn(check, "nothing to do: ballastd reads them in the background", "%s in files were not compared with their digests since the database was lost or ballastd was killed", bytes(x.Unrecorded))
	}
	switch {
	case well && x.Scrubbed.IsZero():
		d.OK(check, "no damage or loss is known")
	case well:
		d.OK(check, "no damage or loss is known; all files were read again since %s", x.Scrubbed.Local().Format(time.DateOnly))
	}
}

// snapshots checks the snapshots.
func (d *Doctor) snapshots(h *wire.Health) {
	const check = "snapshots"
	if h == nil {
		return
	}
	s := &h.Snapshots
	if len(s.Aside) > 0 {
		d.Warn(check, "remove the images of this snapshotter (ctr images rm --sync REF) and pull them again; then rm "+strings.Join(s.Aside, " "),
			"the metadata of the snapshots was damaged and was renamed: containerd has images whose snapshots are unknown")
	}
	if s.Unknown > 0 {
		d.Warn(check, "restart or remove the containers in them; they are removed with the next image",
			"%d directories belong to no known snapshot, and stay while they are mounted", s.Unknown)
	}
	for _, p := range s.Problems {
		about := p.Path
		if about == "" {
			about = p.Table.String()
		}
		d.Fail(check, "ballast verify --repair; if that does not help, remove the image (ctr images rm --sync REF) and pull it again",
			"snapshot %s, %s: %s", p.Snapshot, about, p.Problem)
	}
	if len(s.Aside)+s.Unknown+len(s.Problems) == 0 {
		d.OK(check, "the files of snapshots match their models")
	}
}
