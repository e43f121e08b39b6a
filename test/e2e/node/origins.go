package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// maxForm limits the form data checked, in bytes; token requests have less.
const maxForm = 64 << 10

// minText is the length of the shortest secret searched for in whole requests: shorter ones may be
// ordinary words.
const minText = 8

// A ledger has every secret with the addresses that it may be sent to. Servers (Serve) check
// arriving credentials, so each journey asserts that none are sent elsewhere.
type ledger struct {
	mu     sync.Mutex                 // guards the following
	owners map[string]map[string]bool // by secret: allowed addresses
	realms map[string]map[string]bool // by address of a token server: addresses that name it
}

// secrets is the ledger of this program.
var secrets = &ledger{owners: map[string]map[string]bool{}, realms: map[string]map[string]bool{}}

// Belongs declares that a secret, a password or token, may be sent to the server at an address.
func Belongs(secret, address string) { secrets.add(secrets.owners, secret, address) }

func (l *ledger) add(to map[string]map[string]bool, key, address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to[key] == nil {
		to[key] = map[string]bool{}
	}
	to[key][address] = true
}

// issued records a token issued by the server at an address: it may be sent to this server and to
// those that name it as their token server.
func (l *ledger) issued(token, address string) {
	l.mu.Lock()
	also := make([]string, 0, len(l.realms[address]))
	for a := range l.realms[address] {
		also = append(also, a)
	}
	l.mu.Unlock()
	for _, a := range append(also, address) {
		l.add(l.owners, token, a)
	}
}

// astray returns the problems of a request to an address: a secret that must not be sent there, or
// undeclared credentials.
func (l *ledger) astray(address string, r *http.Request) (problems []string) {
	sent, text := credentialsOf(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range sent {
		if l.owners[s] == nil {
			problems = append(problems, fmt.Sprintf("undeclared credentials (%.3q…, see Belongs)", s))
		}
	}
	for s, owners := range l.owners {
		if !owners[address] && (slices.Contains(sent, s) || len(s) >= minText && strings.Contains(text, s)) {
			problems = append(problems, fmt.Sprintf("a secret (%.3q…) of %v", s, slices.Collect(keys(owners))))
		}
	}
	return problems
}

func keys(m map[string]bool) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// credentialsOf returns the decoded credentials in a request, and the text of the request without a
// body that is not a form.
func credentialsOf(r *http.Request) (sent []string, text string) {
	if _, password, ok := r.BasicAuth(); ok {
		sent = append(sent, password)
	} else if a := r.Header.Get("Authorization"); a != "" {
		_, token, _ := strings.Cut(a, " ")
		sent = append(sent, token)
	}
	for _, k := range []string{"Proxy-Authorization", "Cookie", "X-Registry-Auth"} {
		sent = append(sent, r.Header.Values(k)...)
	}
	query := r.URL.Query()
	if r.Header.Get("Content-Type") == "application/x-www-form-urlencoded" && r.ContentLength <= maxForm {
		p, _ := io.ReadAll(io.LimitReader(r.Body, maxForm)) // the handler sees the error
		r.Body = io.NopCloser(bytes.NewReader(p))
		if form, err := url.ParseQuery(string(p)); err == nil {
			for k, v := range form {
				query[k] = append(query[k], v...)
			}
		}
	}
	for _, k := range []string{"password", "refresh_token", "access_token", "token"} {
		sent = append(sent, query[k]...)
	}
	var all strings.Builder
	all.WriteString(r.URL.Path)
	for _, m := range []map[string][]string{r.Header, query} {
		for k, v := range m {
			fmt.Fprintln(&all, k, v)
		}
	}
	return sent, all.String()
}

// An origin is a server that checks the credentials it receives.
type origin struct {
	http.Handler
	address string

	mu       sync.Mutex // guards problems
	problems []string
}

// realmRE matches the address of a token server in a challenge.
var realmRE = regexp.MustCompile(`realm="https?://([^/"]+)`)

// ServeHTTP implements http.Handler.
func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(pastWire) == "" {
		for _, p := range secrets.astray(o.address, r) {
			o.mu.Lock()
			o.problems = append(o.problems, fmt.Sprintf("%s %s%s got %s", r.Method, o.address, r.URL.Path, p))
			o.mu.Unlock()
		}
	}
	if strings.HasSuffix(r.URL.Path, "/token") {
		w = &tokenWriter{ResponseWriter: w, address: o.address}
	}
	o.Handler.ServeHTTP(w, r)
	if m := realmRE.FindStringSubmatch(w.Header().Get("WWW-Authenticate")); m != nil {
		secrets.add(secrets.realms, m[1], o.address)
	}
}

// check fails the test if the server received credentials that do not belong to it.
func (o *origin) check(t TB) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, p := range o.problems {
		if i == 10 {
			t.Errorf("and %d more", len(o.problems)-i)
			return
		}
		t.Errorf("credentials astray: %s", p)
	}
}

// A tokenWriter records the token in a response before it is sent.
type tokenWriter struct {
	http.ResponseWriter
	address string
}

// Write implements http.ResponseWriter.
func (w *tokenWriter) Write(p []byte) (int, error) {
	var answer struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if json.Unmarshal(p, &answer) == nil {
		for _, s := range []string{answer.Token, answer.Access} {
			if s != "" {
				secrets.issued(s, w.address)
			}
		}
	}
	return w.ResponseWriter.Write(p)
}

// Login gives ballastd and the commands of this node credentials for a host, named as in
// references, like `docker login` as root.
func (n *Node) Login(t TB, host, user, password string) {
	t.Helper()
	Belongs(password, n.addressOf(host))
	if n.logins == nil {
		n.logins = map[string]map[string]string{}
	}
	n.logins[host] = map[string]string{"username": user, "password": password}
	n.write(t, dockerConfig, string(encode(t, map[string]any{"auths": n.logins})))
}

// Logout removes all credentials of Login.
func (n *Node) Logout(t TB) {
	t.Helper()
	n.logins = nil
	if err := os.Remove(filepath.Join(n.Dir, dockerConfig)); err != nil {
		t.Fatalf("%v", err)
	}
}

// addressOf returns the address of a host of references, see Upstream.
func (n *Node) addressOf(host string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.addresses[host]; ok {
		return a
	}
	return host
}

// declare records the credentials in arguments of ctr: --user USER:PASSWORD is for the host of the
// reference, the last argument.
func (n *Node) declare(args []string) {
	for i, a := range args {
		if a == "--user" && i+1 < len(args) {
			_, password, _ := strings.Cut(args[i+1], ":")
			host, _, _ := strings.Cut(args[len(args)-1], "/")
			Belongs(password, n.addressOf(host))
		}
	}
}
