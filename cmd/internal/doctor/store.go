package doctor

import (
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
)

// rebuiltFor is how long a database that was rebuilt is worth a word.
const rebuiltFor = 30 * 24 * time.Hour

// store looks at what the store does not believe.
func (d *Doctor) store(h *admin.Health) {
	const check = "store"
	if h == nil {
		return
	}
	x, well := &h.Doubts, true
	if n := len(x.Unresolved); n > 0 {
		well = false
		d.fail(check, "ballast verify --repair; what it can not mend, pull again with containerd",
			"it is not known what %d references need, %s among them: the table of their model is lost, and nothing makes room until it is there again", n, x.Unresolved[0].Name)
	}
	if n := len(x.Damaged); n > 0 {
		well = false
		d.fail(check, "ballast verify --repair; what no model needs goes with ballast gc",
			"%d damaged files are set aside, %s among them: models can not be read that need them", n, x.Damaged[0])
	}
	if n := len(x.SetAside); n > 0 {
		well = false
		d.warn(check, "compare ballast pin with what should be pinned, and pin again; then rm "+strings.Join(x.SetAside, " "),
			"the database was damaged and is set aside as %s: pins can be lost; models were found again", x.SetAside[n-1])
	} else if !x.Rebuilt.IsZero() && time.Since(x.Rebuilt) < rebuiltFor {
		well = false
		d.warn(check, "compare ballast pin with what should be pinned, and pin again",
			"the database was lost before %s: pins of that time are lost; models were found again", x.Rebuilt.Local().Format(time.DateTime))
	}
	if x.Unproved > 0 {
		well = false
		d.warn(check, "nothing; ballastd reads them in the background", "%s are in files that were not compared with their digests since the database was lost or ballastd was killed", bytes(x.Unproved))
	}
	if well {
		d.ok(check, "nothing is known to be damaged or lost")
	}
}
