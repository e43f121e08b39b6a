package carton

import (
	"regexp"
	"slices"
	"strings"
)

// architectures are the names a target triple can begin with; those with a star stand for all
// that continue so.
// https://github.com/bytecodealliance/target-lexicon/blob/v0.12.5/src/targets.rs
var architectures = strings.Fields(`aarch64* amdgcn arm* asmjs avr bpfeb bpfel clever hexagon i386
	i486 i586 i686 loongarch64 m68k mips* msp430 nvptx64 powerpc powerpc64 powerpc64le riscv32* riscv64*
	s390x sparc sparc64 sparcv9 thumb* wasm32 wasm64 x86_64 x86_64h xtensa`)

var triplePart = regexp.MustCompile(`^[a-z0-9_.+]{1,32}$`)

// maxTriple is the number of parts of a triple: architecture, vendor, system, environment, format.
const maxTriple = 5

// isTriple reports whether s is a target triple.
func isTriple(s string) bool {
	parts := strings.Split(s, "-")
	known := slices.ContainsFunc(architectures, func(a string) bool {
		prefix, more := strings.CutSuffix(a, "*")
		return parts[0] == prefix || more && strings.HasPrefix(parts[0], prefix)
	})
	return known && len(parts) <= maxTriple && !slices.ContainsFunc(parts, func(p string) bool { return !triplePart.MatchString(p) })
}

const (
	versionNumber = `(?:0|[1-9][0-9]{0,18})`
	versionAny    = `[*xX]`
	versionWord   = `[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*`
)

// comparator is one comparator of a version requirement.
// https://docs.rs/semver/1.0.16/semver/struct.VersionReq.html
var comparator = regexp.MustCompile(`^(?:=|>=?|<=?|~|\^)? *` + versionNumber +
	`(?:\.` + versionAny + `(?:\.` + versionAny + `)?` +
	`|\.` + versionNumber + `(?:\.` + versionAny + `|\.` + versionNumber + `(?:-` + versionWord + `)?(?:\+` + versionWord + `)?)?)?$`)

// maxComparators is how many comparators a requirement can have.
const maxComparators = 32

// isVersionReq reports whether s is a requirement on a semantic version.
func isVersionReq(s string) bool {
	s = strings.Trim(s, " ")
	if slices.Contains([]string{"*", "x", "X"}, s) {
		return true
	}
	parts := strings.Split(s, ",")
	return len(parts) <= maxComparators && !slices.ContainsFunc(parts, func(p string) bool {
		return len(p) > 256 || !comparator.MatchString(strings.Trim(p, " "))
	})
}
