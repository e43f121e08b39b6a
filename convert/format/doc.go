// Package format defines what a format is: how its manifests are detected, what they are converted
// to, which facts are lost, and by which names its models are found. A format is a directory with a
// Format, and a line in package formats; its name is used nowhere else.
//
//	manifest ── List.Detect ──▶ Format ─┬─ Parse ──────────────▶ convert.Model
//	                                    ├─ Variants.Choose ────▶ one model of several
//	                                    └─ Archives.OpenLayer ─▶ Archive, which has files of its own
//
// All fields of a Format except its name are optional; the format then does not have that function.
package format
