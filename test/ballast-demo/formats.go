package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// The references of the carton, and of the model with a layer for each tensor.
const (
	cartonHost = "models.example"
	cartonRef  = cartonHost + "/org/tiny:v1"
	tensorsRef = "registry.ollama.ai/library/tensors:latest"
)

// serveCarton serves a carton and returns its host.
func serveCarton(t node.TB, c converttest.Carton) string {
	p := c.Bytes()
	return node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/org/tiny/v1.carton" {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
	}))
}

// cartonConfig is the configuration of ballastd that maps references of a host to cartons.
func cartonConfig(web string) string {
	return fmt.Sprintf("\n[[carton]]\nregistry = %q\nurl = \"http://%s/{repository}/{tag}.carton\"\nallow_http = true\n", cartonHost, web)
}

// tensorModel is an Ollama model with a layer for each of its tensors.
func tensorModel() *converttest.TensorModel {
	return converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(40, 64<<10))
}

// showCarton pulls a carton by its name and compares the files.
func showCarton(t node.TB, n *node.Node) {
	title("%s is a carton on a web server, and becomes files too", cartonRef)
	pull(t, n, cartonRef)
	want := converttest.GoodCarton(random(2, 8<<20))
	check(t, n, cartonRef, "carton", want.Model())
	fmt.Printf("The hash of the carton is %s.\n", want.Hash().Encoded())
}

// showTensors pulls a model of many small layers and reads every tensor from the one file that contains
// them.
func showTensors(t node.TB, n *node.Node) {
	m := tensorModel()
	title("%s has a layer for each tensor, and becomes one file", tensorsRef)
	pull(t, n, tensorsRef)
	r := run(n, tensorsRef, "tensors", nil, "cat", "/model.safetensors")
	if r.Err != nil {
		t.Fatalf("%s\n%v", strings.TrimSpace(r.Stderr), r.Err)
	}
	tensors, _, err := converttest.ReadSafetensors([]byte(r.Stdout))
	if err != nil {
		t.Fatalf("model.safetensors: %v", err)
	}
	want := m.Tensors["model.safetensors"]
	for _, x := range tensors {
		if !bytes.Equal(x.Data, want[x.Name].Data) || x.DType != want[x.Name].DType {
			t.Fatalf("tensor %s is another one", x.Name)
		}
	}
	if len(tensors) != len(want) {
		t.Fatalf("%d tensors, want %d", len(tensors), len(want))
	}
	fmt.Printf("model.safetensors has all %d tensors: names, types and bytes are those of the %d layers.\n", len(tensors), layersOf(m))
}

// layersOf returns the number of tensor layers of a model.
func layersOf(m *converttest.TensorModel) int {
	return bytes.Count(m.Manifest, []byte("ollama.image.tensor"))
}
