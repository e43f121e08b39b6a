package daemon

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/facadetls"
)

// A guard lets requests to the facade through that are made by who may, to what they think they talk
// to. With a key for each client it is the second wall; without, for tests, it keeps browsers out.
type guard struct {
	next    http.Handler
	hosts   []string                        // names that the facade goes by
	known   func(*tls.ConnectionState) bool // nil: all are
	crowded func() bool                     // there are too many connections to keep this one; nil: never
	refused func(why string)
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.crowded != nil && g.crowded() {
		w.Header().Set("Connection", "close")
	}
	switch {
	case g.known != nil && !g.known(r.TLS):
		g.refused(refusedStale)
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusForbidden, "the key of this connection was replaced; connect anew")
	case !slices.Contains(g.hosts, hostOf(r.Host)):
		// What a page of a browser asks that has had its own name resolved to this address.
		g.refused(refusedHost)
		refuse(w, http.StatusMisdirectedRequest, "this is not the host that was asked for")
	case fromBrowser(r.Header):
		g.refused(refusedBrowser)
		refuse(w, http.StatusForbidden, "this is not for browsers")
	default:
		g.next.ServeHTTP(w, r)
	}
}

// fromBrowser reports whether a page of a browser has made a request.
// https://www.w3.org/TR/2021/WD-fetch-metadata-20210720/
func fromBrowser(h http.Header) bool {
	for name := range h {
		if name == "Origin" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

// hostOf returns the host of "host:port", "host" or "[host]".
func hostOf(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		return strings.ToLower(host)
	}
	return strings.ToLower(strings.Trim(s, "[]"))
}

// facadeHosts are the names that a facade goes by that listens at an address.
func facadeHosts(listen string) []string {
	hosts := facadetls.LoopbackHosts()
	if h := hostOf(listen); h != "" && !slices.Contains(hosts, h) {
		hosts = append(hosts, h)
	}
	return hosts
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(refusalBody(text))) // or nobody reads it
}

// refusalBody is an error as registries write it.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#error-codes
func refusalBody(text string) string {
	type problem struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	p, err := json.Marshal(map[string][]problem{"errors": {{"DENIED", text}}})
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return string(p)
}
