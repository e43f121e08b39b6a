//go:build ignore

// Command ollama serves the API of Ollama at an address, so that bench can measure its pulls. It is the
// server of the Ollama project from its module, without the runners: these are C++, and build.sh
// replaces them with stubs.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/ollama/ollama/server"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ollama HOST:PORT")
		os.Exit(2)
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "ollama:", err)
		os.Exit(1)
	}
}

// serve serves until the process is killed. Models are stored in $OLLAMA_MODELS.
func serve(address string) error {
	h, err := (&server.Server{}).GenerateRoutes(nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return http.Serve(l, h)
}
