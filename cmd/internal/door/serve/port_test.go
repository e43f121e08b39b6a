package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"
)

// A signal reports that something was written.
type signal chan struct{}

func (s signal) Write(p []byte) (int, error) {
	select {
	case s <- struct{}{}:
	default:
	}
	return len(p), nil
}

// TestTakenPortIsRetried retries while another process has the port.
func TestTakenPortIsRetried(t *testing.T) {
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said, served := make(signal, 1), make(chan string, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	listen := func() (net.Listener, error) {
		l, err := net.Listen("tcp", squatter.Addr().String())
		if err == nil {
			served <- l.Addr().String()
		}
		return l, err
	}
	go func() {
		done <- Port(ctx, slog.New(slog.NewTextHandler(said, nil)), "no port", listen, http.NotFoundHandler())
	}()
	<-said
	squatter.Close()
	var address string
	select {
	case address = <-served:
	case err := <-done:
		cancel()
		t.Fatalf("it has given up: %v", err)
	}
	res, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("%s, %v", res.Status, err)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := errors.Join(<-done); err != nil {
		t.Error(err)
	}
}
