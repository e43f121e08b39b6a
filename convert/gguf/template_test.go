package gguf

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
)

// TestTemplateIsNotKept has a chat template that would run code if it were executed: no field of the
// config has it.
func TestTemplateIsNotKept(t *testing.T) {
	t.Parallel()
	const attack = `{{ cycler.__init__.__globals__.os.popen('id').read() }}`
	f := converttest.SmallGGUF()
	f.Keys = append(f.Keys, converttest.GGUFKey{Name: "tokenizer.chat_template", Value: attack},
		converttest.GGUFKey{Name: "tokenizer.chat_template.tool_use", Value: attack})
	h, err := read(converttest.GGUF(f))
	if err != nil {
		t.Fatal(err)
	}
	p, err := json.Marshal(Describe(h))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(p), "popen") {
		t.Errorf("the template is in %s", p)
	}
}

// TestPartialHeader has the start of a file with an incomplete header: only its facts are
// lost.
func TestPartialHeader(t *testing.T) {
	t.Parallel()
	p := converttest.GGUF(converttest.SmallGGUF())
	whole, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	for n := range int(whole.DataOffset - whole.Alignment) { // the rest can be padding
		h, err := sniff(bytes.NewReader(p[:n]), Options{Size: int64(len(p))})
		if err == nil || h != nil {
			t.Fatalf("%d bytes: got %+v, %v", n, h, err)
		}
		s := NewSniffer(Options{Size: int64(len(p))})
		s.Write(p[:n])
		if h, err := s.Header(); err == nil || h != nil {
			t.Fatalf("%d bytes in a sniffer: got %+v, %v", n, h, err)
		}
	}
}
