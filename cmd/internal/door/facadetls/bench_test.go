package facadetls

import (
	"crypto/tls"
	"net"
	"net/http"
	"testing"
)

// A mutual TLS handshake and one request: the cost of each connection of a pull.
func BenchmarkConnection(b *testing.B) {
	k, err := Open(b.TempDir(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	s := k.current.Load()
	for name, c := range map[string]*tls.Config{"plain": nil, "TLS": {RootCAs: poolOf(s.ca), Certificates: []tls.Certificate{s.client.tls()}}} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			scheme := "http://"
			if c != nil {
				l, scheme = tls.NewListener(l, k.Config()), "https://"
			}
			go func() { _ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }()
			for b.Loop() {
				tr := &http.Transport{TLSClientConfig: c}
				res, err := (&http.Client{Transport: tr}).Get(scheme + l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				res.Body.Close()
				tr.CloseIdleConnections()
			}
		})
	}
}
