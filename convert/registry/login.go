package registry

import (
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
)

// Clients such as nerdctl look for the credentials of their user by the address that asks for them. That is the facade,
// whatever the registry is, and they do not say what is pulled. So a credential helper beside them asks of which
// repositories the facade was asked without credentials (Asked), looks for those of its user, and has a password made
// of them (Login). The client gives it to the facade, which takes out of it what belongs to the repository of a
// request. A server that is not the facade can do nothing with it.
// https://github.com/containerd/nerdctl/blob/v2.3.5/pkg/imgutil/dockerconfigresolver/dockerconfigresolver.go
// https://github.com/containerd/containerd/blob/v2.4.2/core/remotes/docker/authorizer.go

// loginMark is how passwords of Login begin. They are never given to a registry, not even when they have expired or
// another process has made them.
const loginMark = "ballast-login."

// useLogin is the use (tokens.seal) of a login.
const useLogin = "login"

// maxAsked limits the names of Asked: a helper looks up each, and the password has what it finds.
const maxAsked = 8

// A login is the content of a password of Login.
type login struct {
	Until time.Time
	Of    map[string]remote.Credentials // by name
}

// Asked returns the names (remote.Ref.Name) of repositories for which callers were asked for credentials within the
// last minute, the last one first. It leaves out old ones if there are many.
func (h *Handler) Asked() (names []string) {
	for _, n := range h.asked.last(maxAsked) {
		names = append(names, n.String())
	}
	return names
}

// Login returns a password for the facade, which stands for the credentials of each name (remote.Ref.Name) in requests
// for that repository, and for no credentials in others. It is good for five minutes: after that the client is asked
// again.
func (h *Handler) Login(of map[string]remote.Credentials) string {
	return loginMark + h.tokens.seal(login{time.Now().Add(tokenTime), of}, useLogin)
}

// standsFor returns the caller that as stands for in requests for a repository: if it has a password of Login, the one
// with the credentials in it, or nobody; otherwise itself. ok is false if the password is not valid any more.
func (t *tokens) standsFor(as caller, n name) (_ caller, ok bool) {
	sealed, ok := strings.CutPrefix(as.creds.Secret, loginMark)
	if !ok {
		return as, true
	}
	var l login
	if !t.open(sealed, useLogin, &l) || time.Now().After(l.Until) {
		return caller{}, false
	}
	creds, ok := l.Of[n.String()]
	if !ok {
		return caller{}, true
	}
	return with(creds), true
}
