package config

import (
	"bytes"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// FuzzDecode writes a decoded configuration as "ballastd config dump" does, and reads it back.
func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	if err := Default().Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	for _, s := range []string{
		"version = 1\n", "version = 2\n", "version = 1\n[fetch]\nconnections = -1\nlinger = 5\n", "version = 1\nroot = \"/a:b\"\n",
		"version = 1\n[[lazy.rule]]\nmatch = \"*\"\nmode = \"x\"\n", "version = 1\n[[carton]]\nregistry = \"a\"\nurl = \"https://x/{tag}\"\n",
		"version = 1\n[gc]\nhigh = \"101%\"\nlow = \"80%\"\nquota = \"9223372036854775807TiB\"\n", "version = 1\n[nothing]\n", "version = [\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		c := Default()
		if err := decode("config.toml", p, c); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		if err := c.validate(); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		var b bytes.Buffer
		if err := c.Write(&b); err != nil {
			t.Fatal(err)
		}
		again := new(Config)
		if err := decode("dump", b.Bytes(), again); err != nil {
			t.Fatalf("what was written is not read: %v\n%s", err, b.Bytes())
		}
		if diff := cmp.Diff(again, c); diff != "" {
			t.Fatalf("read back (got, want):\n%s", diff)
		}
	})
}
