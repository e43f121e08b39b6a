package config

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes.
type Size int64

// units of sizes. The short forms are left out: "16M" is ambiguous.
var units = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3},
	{"B", 1},
}

// ParseSize parses a size such as "16MiB", "1.5GB" or "1048576"; the case of the unit does not
// matter.
func ParseSize(s string) (Size, error) {
	num, unit := strings.TrimSpace(s), int64(1)
	for _, u := range units {
		if n, ok := cutSuffixFold(num, u.name); ok {
			num, unit = strings.TrimSpace(n), u.size
			break
		}
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil && n >= 0 {
		if n > math.MaxInt64/unit {
			return 0, fmt.Errorf("size %q is too large", s)
		}
		return Size(n * unit), nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsNaN(f) || f < 0 || strings.ContainsAny(num, "eExX") {
		return 0, fmt.Errorf("size %q is not a number with a unit such as 16MiB or 500GB", s)
	}
	if f*float64(unit) >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return Size(f * float64(unit)), nil
}

// ParseUnitSize is ParseSize for a size typed by a user: only 0 may have no unit.
func ParseUnitSize(s string) (Size, error) {
	n, err := ParseSize(s)
	if err == nil && n != 0 && strings.Trim(s, "0123456789. ") == "" {
		return 0, fmt.Errorf("size %q has no unit: %sGB?", s, strings.TrimSpace(s))
	}
	return n, err
}

func cutSuffixFold(s, suffix string) (string, bool) {
	n := len(s) - len(suffix)
	if n < 0 || !strings.EqualFold(s[n:], suffix) {
		return s, false
	}
	return s[:n], true
}

// String returns s with the largest unit that gives a whole number.
func (s Size) String() string {
	for _, u := range units {
		if s >= Size(u.size) && int64(s)%u.size == 0 && u.name != "B" {
			return strconv.FormatInt(int64(s)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// leastBare is the least size without a unit that is not taken for one whose unit was forgotten.
const leastBare = 1000

// UnmarshalText parses p as ParseSize does. Few bytes, and parts of a byte, need a unit.
func (s *Size) UnmarshalText(p []byte) error {
	v, err := ParseSize(string(p))
	if err == nil && (v < leastBare || bytes.ContainsRune(p, '.')) {
		v, err = ParseUnitSize(string(p))
	}
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// MarshalText returns String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Duration is a time.Duration written as "5m". It is not a number, so that a bare 5 in a file is an
// error and not five nanoseconds.
type Duration struct{ time.Duration }

// UnmarshalText parses p as time.ParseDuration does. Only 0 may have no unit.
func (d *Duration) UnmarshalText(p []byte) error {
	v, err := time.ParseDuration(string(p))
	if _, numErr := strconv.ParseFloat(string(p), 64); err != nil && numErr == nil {
		return fmt.Errorf("duration %q has no unit: %ss?", p, p)
	}
	if err != nil {
		return fmt.Errorf("duration %q is not a number with a unit such as 30s or 5m", p)
	}
	d.Duration = v
	return nil
}

// String returns d without trailing zero units.
func (d Duration) String() string {
	s := d.Duration.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Percent is a percentage from 1 to 100, written as "85%".
type Percent int

// UnmarshalText parses a whole number from 1 to 100 with a percent sign.
func (p *Percent) UnmarshalText(b []byte) error {
	num, ok := strings.CutSuffix(strings.TrimSpace(string(b)), "%")
	v, err := strconv.Atoi(num)
	if !ok || err != nil || !Percent(v).valid() {
		return fmt.Errorf("percentage %q is not in the range 1%% to 100%%", b)
	}
	*p = Percent(v)
	return nil
}

func (p Percent) valid() bool { return p >= 1 && p <= 100 }

// String returns p with a percent sign.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// MarshalText returns String.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Of returns p percent of n.
func (p Percent) Of(n int64) int64 { return n / 100 * int64(p) }
