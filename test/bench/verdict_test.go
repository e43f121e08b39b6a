package main

import (
	"math"
	"slices"
	"testing"
	"time"
)

// pairs returns a comparison in milliseconds whose base is 100 ms and whose heads are given.
func pairs(heads ...time.Duration) *comparison {
	c := &comparison{what: "work", print: millis, unit: time.Millisecond}
	for _, h := range heads {
		c.add(100*time.Millisecond, h*time.Millisecond)
	}
	return c
}

func TestVerdict(t *testing.T) {
	for name, tt := range map[string]struct {
		c     *comparison
		want  verdict
		pairs int // that it took
	}{
		"no pair":              {pairs(), unclear, 0},
		"one pair":             {pairs(300), unclear, 1},
		"too few pairs":        {pairs(300, 300, 300, 300, 300), unclear, 5},
		"clear regression":     {pairs(120, 118, 125, 119, 122, 121, 90, 90), worse, 6},
		"regression, one fast": {pairs(120, 118, 60, 119, 122, 121, 124, 119, 123, 118), worse, 9},
		"clearly the same":     {pairs(100, 99, 101, 102, 98, 100, 300, 300), fine, 5},
		"clearly better":       {pairs(50, 52, 49, 51, 50, 48), fine, 5},
		"one slow":             {pairs(100, 99, 400, 102, 98, 100, 101, 99, 100), fine, 8},
		"exactly the limit":    {pairs(105, 105, 105, 105, 105, 105), fine, 5},
		"noise":                {pairs(80, 130, 90, 125, 70, 140, 85, 120, 95, 115, 80, 130, 90, 125, 100), unclear, 15},
	} {
		if got := tt.c.verdict(); got != tt.want || len(tt.c.base) != tt.pairs {
			t.Errorf("%s: %s after %d pairs, want %s after %d", name, got, len(tt.c.base), tt.want, tt.pairs)
		}
	}
}

// TestVerdictOfNothing checks costs that are below what can be measured.
func TestVerdictOfNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		base, head time.Duration // in units
		want       verdict
		ratio      float64
	}{
		"nothing and nothing": {0, 0, fine, 1},
		"nothing and a unit":  {0, 1, fine, 1},
		"a unit and nothing":  {1, 0, fine, 1},
		"nothing and much":    {0, 40, worse, 40},
		"much and nothing":    {40, 0, fine, 0.025},
	} {
		c := &comparison{print: seconds, unit: 10 * time.Millisecond}
		for range 6 {
			c.add(tt.base*c.unit, tt.head*c.unit)
		}
		if s := c.summary(); c.verdict() != tt.want || math.Abs(s.Center-tt.ratio) > 1e-9 {
			t.Errorf("%s: %s, ratio %g, want %s, %g", name, c.verdict(), s.Center, tt.want, tt.ratio)
		}
	}
}

// TestFalseVerdicts counts the wrong verdicts among all sequences of 15 pairs that are above or below the limit: with
// a median of exactly the limit, each sequence is as likely as any other.
func TestFalseVerdicts(t *testing.T) {
	const most = 15
	byPairs := map[verdict]int{}
	count := func(v verdict, c *comparison) { byPairs[v] += 1 << (most - len(c.base)) } // sequences that begin with these pairs
	var extend func(c *comparison)
	extend = func(c *comparison) {
		if v := c.verdict(); v != unclear || len(c.base) == most {
			count(v, c)
			return
		}
		for _, head := range []time.Duration{90, 110} {
			next := *c
			next.base, next.head = slices.Clone(c.base), slices.Clone(c.head)
			next.add(100, head)
			extend(&next)
		}
	}
	extend(&comparison{unit: 1})
	if sum := byPairs[worse] + byPairs[fine] + byPairs[unclear]; sum != 1<<most {
		t.Fatalf("%d sequences, want %d", sum, 1<<most)
	}
	// The interval is not symmetric: where it has to be longer on one side, that is the lower one.
	for v, most := range map[verdict]float64{worse: 0.05, fine: 0.08} {
		if share := float64(byPairs[v]) / (1 << 15); share == 0 || share > most {
			t.Errorf("%.4f of the verdicts are %s, want at most %g", share, v, most)
		} else {
			t.Logf("%.4f of the verdicts are %s", share, v)
		}
	}
}

func TestComparisonRow(t *testing.T) {
	for _, tt := range []struct {
		c    *comparison
		want []string
	}{
		{pairs(120, 118, 125, 119, 124, 122), []string{"work", "100.0 ms (100.0–100.0)", "121.0 ms (118.0–125.0)", "1.21", "1.18–1.25", "6", "WORSE"}},
		{pairs(120, 118), []string{"work", "100.0 ms (100.0–100.0)", "119.0 ms (118.0–120.0)", "1.19", "none", "2", "unclear"}},
		{pairs(99, 98, 97, 96, 95), []string{"work", "100.0 ms (100.0–100.0)", "97.0 ms (95.0–99.0)", "0.97", "up to 0.99", "5", "ok"}},
	} {
		if got := tt.c.row(); !slices.Equal(got, tt.want) {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	if len(pairs(100).row()) != len(comparisonHeading) {
		t.Errorf("the heading does not fit")
	}
}
