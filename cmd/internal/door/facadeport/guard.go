package facadeport

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/cmd/internal/door/facadetls"
)

// A guard passes only requests from allowed clients for names of the facade. With client keys it is
// a second line of defense; without, in tests, it blocks browsers.
type guard struct {
	next    http.Handler
	hosts   []string                        // names of the facade
	known   func(*tls.ConnectionState) bool // reports whether the client is authenticated; nil: all are
	crowded func() bool                     // reports whether this connection should be closed; nil: never
	refused func(metrics.Refusal)
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.crowded != nil && g.crowded() {
		w.Header().Set("Connection", "close")
	}
	switch {
	case g.known != nil && !g.known(r.TLS):
		g.refused(metrics.StaleKey)
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusForbidden, "the key of this connection was replaced; connect anew")
	case !slices.Contains(g.hosts, hostOf(r.Host)):
		// Sent by a page of a browser after its own host name was made to resolve to this address.
		g.refused(metrics.Host)
		refuse(w, http.StatusMisdirectedRequest, "this is not the host that was asked for")
	case fromBrowser(r.Header):
		g.refused(metrics.Browser)
		refuse(w, http.StatusForbidden, "this is not for browsers")
	default:
		g.next.ServeHTTP(w, r)
	}
}

// fromBrowser reports whether a page of a browser made a request.
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

// facadeHosts returns the host names of a facade that listens at an address.
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
	_, _ = w.Write([]byte(refusalBody(text))) // on an error the client is gone
}

// refusalBody returns an error in the form of registries.
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
