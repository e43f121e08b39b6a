package registry

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
)

// containerd sends the credentials of a pull only if they are asked for. A Basic challenge asks only those who have a
// user name and a password: an identity token gets no further, and in place of the text of the registry, who has
// nothing sees "no basic auth credentials". So the facade is its own token server: it takes what containerd has, or
// nothing, and the request comes again with a token for that.
// https://distribution.github.io/distribution/spec/auth/oauth/

// tokenPath is the path of the token server.
const tokenPath = "/token"

// tokenTime is how long a token is valid; constant but for tests.
var tokenTime = 5 * time.Minute

// maxTokenForm limits a request for a token, in bytes. The token in a header is larger than its credentials.
const maxTokenForm = 32 << 10

// tokens makes the tokens of callers. A token is the credentials, encrypted with a key that nobody else has, and lost
// with the process. It is good for one host.
type tokens struct {
	once sync.Once
	aead cipher.AEAD
}

// A grant is the content of a token.
type grant struct {
	Until    time.Time
	Given    bool // there are credentials
	Username string
	Secret   string
}

func (t *tokens) cipher() cipher.AEAD {
	t.once.Do(func() {
		var key [32]byte
		rand.Read(key[:]) // never fails
		block, err := aes.NewCipher(key[:])
		if err == nil {
			t.aead, err = cipher.NewGCMWithRandomNonce(block)
		}
		if err != nil {
			panic("registry: internal error: " + err.Error()) // the size of the key is right
		}
	})
	return t.aead
}

// seal returns a value that nobody else can read or change. use is what it can be used for, and must be given to open.
func (t *tokens) seal(v any, use string) string {
	p, err := json.Marshal(v)
	if err != nil {
		panic("registry: internal error: " + err.Error()) // strings and times can be encoded
	}
	return base64.RawURLEncoding.EncodeToString(t.cipher().Seal(nil, nil, p, []byte(use)))
}

// open reads what seal has returned, and reports whether it was that, for this use.
func (t *tokens) open(sealed, use string, v any) bool {
	p, err := base64.RawURLEncoding.DecodeString(sealed)
	if err == nil {
		p, err = t.cipher().Open(nil, nil, p, []byte(use))
	}
	return err == nil && json.Unmarshal(p, v) == nil
}

// useFor is the use of the tokens for a host.
func useFor(host string) string { return "host " + host }

// issue returns a token of a caller for a host.
func (t *tokens) issue(host string, as caller) string {
	return t.seal(grant{time.Now().Add(tokenTime), as.given, as.creds.Username, as.creds.Secret}, useFor(host))
}

// caller returns the caller with a token for a host; ok is false if it is none, or has expired.
func (t *tokens) caller(host, token string) (as caller, ok bool) {
	var g grant
	if !t.open(token, useFor(host), &g) || time.Now().After(g.Until) {
		return caller{}, false
	}
	if !g.Given {
		return caller{}, true
	}
	return with(remote.Credentials{Username: g.Username, Secret: g.Secret}), true
}

// basic returns the sender of a request with a user name and a password; ok is false if it has none.
func basic(r *http.Request) (as caller, ok bool) {
	user, secret, ok := r.BasicAuth()
	if !ok {
		return caller{}, false
	}
	return with(remote.Credentials{Username: user, Secret: secret}), true
}

// callerOf returns the sender of a request for something of a repository.
func (h *Handler) callerOf(r *http.Request, n name) (caller, error) {
	as, ok := basic(r)
	if !ok {
		token, given := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !given {
			return caller{}, nil
		}
		as, ok = h.tokens.caller(n.host, token)
	}
	if ok {
		as, ok = h.tokens.standsFor(as, n)
	}
	if !ok {
		return caller{}, &refusal{status: http.StatusUnauthorized, code: codeUnauthorized, text: "the token of the facade is not valid any more"}
	}
	return as, nil
}

// serveToken answers a request for a token.
func (h *Handler) serveToken(w http.ResponseWriter, r *http.Request) {
	var as caller
	var host string
	ok := true
	switch r.Method {
	case http.MethodGet:
		host = r.URL.Query().Get("service")
		as, _ = basic(r)
	case http.MethodPost:
		r.Body = http.MaxBytesReader(w, r.Body, maxTokenForm)
		ok = r.ParseForm() == nil
		host = r.PostForm.Get("service")
		switch r.PostForm.Get("grant_type") {
		case "password":
			as = with(remote.Credentials{Username: r.PostForm.Get("username"), Secret: r.PostForm.Get("password")})
		case "refresh_token":
			as = with(remote.Credentials{Secret: r.PostForm.Get("refresh_token")})
		default:
			ok = false
		}
	default:
		ok = false
	}
	if !ok {
		h.writeError(w, r, &refusal{status: http.StatusBadRequest, code: codeUnsupported, text: "a token is asked for by GET, or by POST with a password or a refresh_token"})
		return
	}
	token := h.tokens.issue(host, as)
	p, err := json.Marshal(map[string]any{"token": token, "access_token": token, "expires_in": int(tokenTime.Seconds())})
	if err != nil {
		panic("registry: internal error: " + err.Error()) // strings can be encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(p) // errors are ignored: the request is done
}

// challenge returns the challenge of a request that was refused with a text. containerd asks for another token, and
// shows the error if that changes nothing; without it, it would try again several times.
func challenge(r *http.Request, text string) string {
	scheme, service := "https", ""
	if r.TLS == nil {
		scheme = "http"
	}
	if t, err := parseTarget(r.URL); err == nil {
		service = t.ref.Host
	}
	c := `Bearer realm="` + scheme + "://" + plain(r.Host) + tokenPath + `",service="` + plain(service) + `"`
	if r.Header.Get("Authorization") != "" {
		c += `,error="` + plain(text) + `"`
	}
	return c
}

// maxChallenge limits the text in a challenge, in bytes.
const maxChallenge = 1 << 10

// plain returns s without what cannot be in a quoted string of a header.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r < ' ' || r > '~' || r == '\\':
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), maxChallenge)]
}
