package page

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
)

// A square is a model on a node.
type square struct {
	node  string
	phase v1alpha1.Phase
	done  float64 // percent
}

// A picture has a square for each node, as paths of SVG: one for each look, since a thousand elements make a browser
// slow. Few nodes have a text each.
type picture struct {
	Width, Height, Size int
	// Ground has all squares, Ready, Part and Failed those of a phase: Part is filled from below as far as the model
	// is there.
	Ground, Ready, Part, Failed string
	Texts                       []label
}

// A label is the text of a square.
type label struct {
	X, Y int
	Text string
}

// How squares are drawn: up to large nodes, and up to texts, have larger ones.
const (
	large   = 60
	texts   = 240
	columns = 100
)

func draw(squares []square) picture {
	p := picture{Size: 7}
	switch n := len(squares); {
	case n <= large:
		p.Size = 16
	case n <= texts:
		p.Size = 10
	}
	pitch := p.Size + 2
	perRow := min(len(squares), columns*9/pitch)
	if perRow > 0 {
		p.Width, p.Height = perRow*pitch, (len(squares)+perRow-1)/perRow*pitch
	}
	var ground, ready, part, failed strings.Builder
	for i, s := range squares {
		x, y := i%perRow*pitch, i/perRow*pitch
		box(&ground, x, y, p.Size)
		switch s.phase {
		case v1alpha1.PhaseReady:
			box(&ready, x, y, p.Size)
		case v1alpha1.PhaseFailed: // a cross: not everybody sees its colour
			fmt.Fprintf(&failed, "M%d %dl%d %dm0 %dl%d %d", x, y, p.Size, p.Size, -p.Size, -p.Size, p.Size)
		case v1alpha1.PhaseDownloading:
			if h := max(1, int(s.done*float64(p.Size)/100)); s.done > 0 {
				fmt.Fprintf(&part, "M%d %dh%dv%dh%dz", x, y+p.Size-h, p.Size, h, -p.Size)
			}
		}
		if len(squares) <= texts {
			text := fmt.Sprintf("%s: %s", s.node, s.phase)
			if s.phase == v1alpha1.PhaseDownloading {
				text += fmt.Sprintf(" %.0f %%", s.done)
			}
			p.Texts = append(p.Texts, label{x, y, text})
		}
	}
	p.Ground, p.Ready, p.Part, p.Failed = ground.String(), ready.String(), part.String(), failed.String()
	return p
}

// box adds a square to a path.
func box(b *strings.Builder, x, y, size int) {
	fmt.Fprintf(b, "M%d %dh%dv%dh%dz", x, y, size, size, -size)
}
