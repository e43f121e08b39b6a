// Command ollama answers the API of Ollama at an address, for bench to measure its pulls beside ballast. It is the server of
// the Ollama project as its module has it, but for what runs models: that is C++, and build.sh puts stubs in its place.
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

// serve answers until the process is ended. Models are kept where OLLAMA_MODELS says.
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
