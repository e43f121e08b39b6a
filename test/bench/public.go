package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// tablesRepository has the tables of hash states.
const tablesRepository = "bench/tables"

// tableKeys writes a key pair and returns its files.
func (b *bench) tableKeys() (private, public string) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	write := func(name, kind string, der []byte, err error) string {
		file := filepath.Join(b.node.Dir, name)
		if err == nil {
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		return file
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	private = write("tables.key", "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(pub)
	return private, write("tables.pub", "PUBLIC KEY", der, err)
}

// public measures a model as its publisher made it, with one digest for its file: the first byte and the whole, by a
// table of hash states and without one.
func (b *bench) public() {
	m := b.model()
	l := lazyModel{m, b.node.Registry.Ref(m.repository, "v1"), b.node.Registry.BlobURL(m.repository, m.digest)}
	b.pushTar("bench/public-page", b.pushModel("bench/public-small", 16<<10, 210))
	page := b.node.Registry.Ref("bench/public-page", "v1")
	private, public := b.tableKeys()
	trusting := fmt.Sprintf("[lazy]\ntables = %q\ntable_keys = [%q]\n", b.node.Registry.Host+"/"+tablesRepository, public)
	b.configure(trusting)
	defer b.configure("")
	b.must(b.node.Pull("ballast", l.ref))
	b.must(b.node.Ballast("tables", "push", l.ref, "--sign", private))
	b.forget(l.ref)

	var with, without, control, loaded, afterwards series
	for range b.rounds {
		b.settle(m.size, m.digest)
		b.link(farRate, farLink)
		b.ordinary(page) // loads the programs into memory
		control.add(b.ordinary(page))
		with.add(b.early(l, m.size/2))
		b.settle(m.size, m.digest)
		loaded.add(b.loadedFrom(l))
		b.link(0, 0)

		b.configure("")
		b.settle(m.size, m.digest)
		b.link(farRate, farLink)
		without.add(b.early(l, m.size/2))
		b.settle(m.size, m.digest)
		afterwards.add(b.loadedFrom(l))
		b.link(0, 0)
		b.configure(trusting)
	}
	link := series{time.Duration(float64(m.size) / farRate * 1e9)}
	where := fmt.Sprintf("%s, %s/s, %v", sizeOf(m.size), sizeOf(farRate), farLink)
	b.figure("public: pull to a page in the middle, by a table, "+where, with.median().Seconds()*1000, "%.0f ms",
		"an image of a page "+control.spread(millis), atMost(150, " ms"))
	b.compare("the same", with, "without a table", without, millis, target{})
	b.compare("public: pull to loaded, by a table, "+where, loaded, "the link", link, seconds, atMost(1.03, ""))
	b.compare("the same", loaded, "without a table", afterwards, seconds, target{})
}

// loadedFrom measures the time from the start of a pull until a loader has read the model, which it removes.
func (b *bench) loadedFrom(l lazyModel) time.Duration {
	start := time.Now()
	c := b.readCold(l)
	took := time.Since(start)
	b.awaitComplete(l.digest)
	b.leave(l, c)
	return took
}
