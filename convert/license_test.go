package convert

import "testing"

func TestSPDX(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"apache-2.0": "Apache-2.0", "MIT": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0", "mit OR apache-2.0": "MIT OR Apache-2.0",
		"": "", "other": "", "llama3.1": "", "MIT AND": "", "MIT MIT MIT": "", "gemma OR MIT": "",
	} {
		if got := SPDX(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
