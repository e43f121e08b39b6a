package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// earlyRepo is the repository of a model that is read before it is complete, and tablesRepo that of its table.
const (
	earlyRepo  = "models/early"
	tablesRepo = "team/tables"
)

// A tableKey is a key pair that signs tables of hash states.
type tableKey struct{ private, public string } // files

func newTableKey(t node.TB, dir string) (k tableKey) {
	k.private, k.public = converttest.KeyPair(t, dir, "tables")
	return k
}

// config is the configuration of ballastd that trusts the key for tables of a registry.
func (k tableKey) config(host string) string {
	return fmt.Sprintf("\n[lazy]\ntables = %q\ntable_keys = [%q]\n", host+"/"+tablesRepo, k.public)
}

// earlyModel is the model: a ModelPack artifact with one digest for all of its weights.
func earlyModel(size int) *converttest.Built {
	return converttest.ModelPackRaw([]converttest.File{{Path: "model.bin", Data: random(3, size), Mode: 0o644}})
}

// showEarly reads the end of an unconverted model while most of it is not on the node.
func showEarly(t node.TB, n *node.Node, k tableKey, size int) {
	ref := n.Registry.Ref(earlyRepo, "1")
	ballast := func(args ...string) {
		prompt(append([]string{"ballast"}, args...)...)
		show(t, n.Ballast(args...))
	}
	title("%s, as its publisher made it, is read before it is complete", ref)
	fmt.Println("One node has the whole model, and writes a table of its hash states for the others:")
	pull(t, n, ref)
	ballast("tables", "push", ref, "--sign", k.private)
	show(t, ctr(n, "images", "rm", "--sync", ref))
	ballast("rm", "--now", ref)

	fmt.Println("\nAnother node, which is the same here, reads the end of the file while downloads are paused:")
	ballast("pause")
	pull(t, n, ref)
	r := run(n, ref, "early", nil, "end", "/model.bin")
	show(t, r)
	p := earlyModel(size).Files["model.bin"].Data
	sum := sha256.Sum256(p[len(p)-endLen:])
	if want := hex.EncodeToString(sum[:]) + "\n"; r.Stdout != want {
		t.Fatalf("the end of the file has other bytes: %q, want %q", r.Stdout, want)
	}
	fmt.Println("These are the bytes of the file.")
	ballast("why", ref)
	ballast("resume")
	ballast("pull", ref)
}
