package wire

import (
	"context"
	"net/http"
)

// Asked are the repositories for which pulls were asked for credentials within the last minute.
type Asked struct {
	Names []string `json:"names"` // host/repository; the last one first
}

// A Login asks for a password for the facade that stands for credentials.
type Login struct {
	Of []Credentials `json:"of"`
}

// Credentials are those of a user for a repository. Without a user name, the secret is an identity token.
type Credentials struct {
	Name     string `json:"name"` // host/repository
	Username string `json:"username,omitempty"`
	Secret   string `json:"secret"`
}

// A Password is given to the facade with any user name. It is good for a few minutes.
type Password struct {
	Password string `json:"password"`
}

// Asked returns the repositories for which pulls were asked for credentials within the last minute.
func (c *Client) Asked(ctx context.Context) (v Asked, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/asked", nil, &v)
}

// Login returns a password for the facade that stands for credentials.
func (c *Client) Login(ctx context.Context, l Login) (v Password, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/login", l, &v)
}
