// Command llama-server stands in for the server of llama.cpp in tests. It takes the same flags and paths, reads a model as
// llama.cpp does (the header and the metadata, then the tensors through one mapping of the file), and answers
// completions with what it has read, not with a text.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"
)

func main() {
	model := flag.String("model", "", "a GGUF file")
	host := flag.String("host", "127.0.0.1", "address to listen on")
	port := flag.String("port", "8080", "port to listen on")
	flag.Parse()
	loaded := make(chan struct{})
	var content string
	mux := http.NewServeMux()
	ready := func(w http.ResponseWriter) bool { // as the real one, it listens before it has loaded
		select {
		case <-loaded:
			return true
		default:
			http.Error(w, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, http.StatusServiceUnavailable)
			return false
		}
	}
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the client has gone
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if ready(w) {
			answer(w, map[string]string{"status": "ok"})
		}
	})
	mux.HandleFunc("POST /completion", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Prompt string `json:"prompt"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Prompt == "" {
			http.Error(w, "no prompt", http.StatusBadRequest)
			return
		}
		if ready(w) {
			answer(w, map[string]any{"content": content, "stop": true})
		}
	})
	go func() {
		m, err := load(*model)
		if err != nil {
			log.Fatalf("%s: %v", *model, err)
		}
		content = m
		close(loaded)
	}()
	s := &http.Server{Addr: net.JoinHostPort(*host, *port), Handler: mux, ReadHeaderTimeout: time.Minute}
	log.Fatal(s.ListenAndServe())
}

// load maps a model, and describes what it has read.
func load(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	p, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return "", err
	}
	defer func() { _ = syscall.Munmap(p) }() // the process keeps nothing of it
	m, err := parse(p)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, t := range slices.Backward(m.tensors) { // the head of the file is read, the rest is not yet
		h.Write(p[m.data+t.offset:][:t.size])
	}
	return fmt.Sprintf("%s %s, %d tensors, %x", m.texts["general.architecture"], m.texts["general.name"], len(m.tensors), h.Sum(nil)), nil
}

var errShort = errors.New("the file ends early")
