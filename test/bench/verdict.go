package main

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/perf/benchmath"
)

// The guard lets a cost grow by a twentieth. The interval of the median has a confidence that allows to look at it
// after each pair: a cost whose median has grown by exactly as much is called worse in 4 of 100 guards of 15 pairs,
// one that has not grown hardly ever. TestFalseVerdicts counts it.
const (
	mostRatio  = 1.05
	confidence = 0.95
)

// A verdict says how a cost has changed.
type verdict string

const (
	unclear verdict = "unclear" // the interval has mostRatio inside, or there are too few pairs for an interval
	fine    verdict = "ok"      // the interval is not above mostRatio
	worse   verdict = "WORSE"   // the interval is above mostRatio
)

// A comparison is a cost of the same work in two versions, measured in pairs of runs.
type comparison struct {
	what  string
	print func(time.Duration) string

	// unit is the smallest cost that the measurement can tell from nothing. What costs less counts as one unit, so that
	// a ratio to nothing is none.
	unit time.Duration

	base, head series
}

// add adds a pair if the verdict is unclear. A verdict stays: with more pairs it would have more chances to be wrong.
func (c *comparison) add(base, head time.Duration) {
	if c.verdict() == unclear {
		c.base.add(base)
		c.head.add(head)
	}
}

// summary returns the median of the ratios of the pairs with its interval. It assumes nothing about their
// distribution: the bounds are two of the ratios, chosen by the binomial distribution. So with fewer than six pairs
// there is no lower bound, and with fewer than five none at all.
func (c *comparison) summary() benchmath.Summary {
	if len(c.base) == 0 {
		return benchmath.Summary{Center: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1)}
	}
	var ratios []float64
	for i := range c.base {
		ratios = append(ratios, float64(max(c.head[i], c.unit))/float64(max(c.base[i], c.unit)))
	}
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(ratios, &benchmath.DefaultThresholds), confidence)
}

func (c *comparison) verdict() verdict {
	switch s := c.summary(); {
	case s.Lo > mostRatio:
		return worse
	case s.Hi <= mostRatio:
		return fine
	}
	return unclear
}

// row returns the comparison as a row of a table with the heading comparisonHeading.
func (c *comparison) row() []string {
	s := c.summary()
	interval := fmt.Sprintf("%.2f–%.2f", s.Lo, s.Hi)
	if math.IsInf(s.Hi, 0) {
		interval = "none"
	} else if math.IsInf(s.Lo, 0) {
		interval = fmt.Sprintf("up to %.2f", s.Hi)
	}
	return []string{c.what, c.base.spread(c.print), c.head.spread(c.print), fmt.Sprintf("%.2f", s.Center), interval,
		fmt.Sprint(len(c.base)), string(c.verdict())}
}

var comparisonHeading = []string{"what", "base", "head", "ratio", "95 % interval", "pairs", "verdict"}
