package admin

import (
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// working returns next, whose clients learn that the daemon works on an answer that takes long (wire.Working).
// node.Touch returns when the disk has written something: while it hangs they learn nothing.
func working(next http.Handler, node Node) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answering{ResponseWriter: w, header: http.Header{}}
		ended := make(chan struct{})
		defer a.begin()
		defer close(ended)
		go func() {
			for wait := wire.FirstWorking; ; wait = wire.Working {
				select {
				case <-ended:
					return
				case <-time.After(wait):
				}
				if wait == wire.Working && node != nil {
					node.Touch()
				}
				if !a.works() {
					return
				}
			}
		}()
		next.ServeHTTP(a, r)
	})
}

// An answering is a response that has not begun, or has. Before that, all of it belongs to who says that the daemon
// works.
type answering struct {
	http.ResponseWriter
	header http.Header // of the response until it begins

	mu    sync.Mutex // held while the underlying writer is used before it has begun
	begun bool
}

// works says that the daemon works on the response, and returns false if it has begun.
func (a *answering) works() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun {
		return false
	}
	a.ResponseWriter.WriteHeader(http.StatusProcessing)
	return true
}

func (a *answering) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.begun {
		a.begun = true
		maps.Copy(a.ResponseWriter.Header(), a.header)
	}
}

// Header implements http.ResponseWriter.
func (a *answering) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answering) WriteHeader(status int) {
	a.begin()
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answering) Write(p []byte) (int, error) {
	a.begin()
	return a.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (a *answering) FlushError() error {
	a.begin()
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap gives http.ResponseController access to the underlying writer.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }
