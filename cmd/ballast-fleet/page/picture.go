package page

import (
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
)

// A square is a model on a node.
type square struct {
	node  string
	phase v1alpha1.Phase
	done  float64 // percent
}

// A picture has a square for each node, as paths of SVG: one for each look, since a thousand elements make a browser
// slow. Squares side by side are one line with gaps, so that a picture is small. Few nodes have a text each.
type picture struct {
	Width, Height, Size, Gap int
	Bar                      int // height of the bar of a node where the model failed: not everybody sees its colour
	// Ground has the lines of all squares, Ready and Failed those of a phase, and Part areas that are filled from below
	// as far as the model is there.
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
	large = 60
	texts = 240
	gap   = 2
	width = 900
)

// The bytes of a page that a square takes at most, without the name of its node.
const (
	squareBytes = 16 // of up to 11,000 nodes
	textBytes   = 110
)

// weight returns how many bytes a picture of nodes takes at most.
func weight(nodes []*plan.Node) int {
	if len(nodes) > texts {
		return len(nodes) * squareBytes
	}
	sum := 0
	for _, n := range nodes {
		sum += squareBytes + textBytes + len(n.Name)
	}
	return sum
}

func draw(squares []square) picture {
	p := picture{Size: 7, Gap: gap}
	switch n := len(squares); {
	case n <= large:
		p.Size = 16
	case n <= texts:
		p.Size = 10
	}
	p.Bar = 4 - p.Size%2 // whole points
	pitch := p.Size + gap
	perRow := min(len(squares), width/pitch)
	if perRow > 0 {
		p.Width, p.Height = perRow*pitch, (len(squares)+perRow-1)/perRow*pitch
	}
	var part strings.Builder
	for i, s := range squares {
		x, y := i%perRow*pitch, i/perRow*pitch
		if h := max(1, int(s.done*float64(p.Size)/100)); s.phase == v1alpha1.PhaseDownloading && s.done > 0 {
			fmt.Fprintf(&part, "M%d %dh%dv%dh%dz", x, y+p.Size-h, p.Size, h, -p.Size)
		}
		if len(squares) <= texts {
			text := fmt.Sprintf("%s: %s", s.node, s.phase)
			if s.phase == v1alpha1.PhaseDownloading {
				text += fmt.Sprintf(" %.0f %%", s.done)
			}
			p.Texts = append(p.Texts, label{x, y, text})
		}
	}
	lines := func(of func(square) bool) string { return lines(squares, of, perRow, p.Size) }
	p.Ground, p.Part = lines(func(square) bool { return true }), part.String()
	p.Ready = lines(func(s square) bool { return s.phase == v1alpha1.PhaseReady })
	p.Failed = lines(func(s square) bool { return s.phase == v1alpha1.PhaseFailed })
	return p
}

// lines returns a path with a line through the middle of each run of squares of a kind.
func lines(squares []square, of func(square) bool, perRow, size int) string {
	var b strings.Builder
	pitch := size + gap
	for begin := 0; begin < len(squares); begin++ {
		end := begin
		for end < len(squares) && end/perRow == begin/perRow && of(squares[end]) {
			end++
		}
		if n := end - begin; n > 0 {
			fmt.Fprintf(&b, "M%d %gh%d", begin%perRow*pitch, float64(begin/perRow*pitch)+float64(size)/2, n*pitch-gap)
			begin = end - 1
		}
	}
	return b.String()
}
