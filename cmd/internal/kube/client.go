package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// DefaultAccount is the directory of a pod's service account files, written by the kubelet.
const DefaultAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Files of a service account.
const (
	tokenFile = "token"
	caFile    = "ca.crt"
)

const (
	requestTimeout = 30 * time.Second
	maxAnswer      = 8 << 20 // 8 MiB: a node with many images has 100 KiB
	maxMessage     = 4 << 10 // 4 KiB of an error message
)

// A Client sends requests to the API server with a service account. Errors have these categories:
// errdefs.ErrNotFound, ErrPermissionDenied (401, 403), ErrConflict (the object was changed in the
// meantime) and ErrUnavailable (worth a retry).
type Client struct {
	base    url.URL
	account string
	http    http.Client
}

// NewClient returns a client for the API server at address, "host:port", with the files of a service
// account in the directory account. It does not connect yet.
func NewClient(address, account string) (*Client, error) {
	pem, err := os.ReadFile(filepath.Join(account, caFile))
	if err != nil {
		return nil, fmt.Errorf("read the certificates of the API server: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificates: %w", filepath.Join(account, caFile), errdefs.ErrInvalidArgument)
	}
	return &Client{
		base: url.URL{Scheme: "https", Host: address}, account: account,
		http: http.Client{
			Timeout: requestTimeout,
			// A redirect would send the token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		},
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call makes a request and decodes the response into v.
func (c *Client) call(ctx context.Context, method, contentType string, body []byte, v any, path ...string) error {
	token, err := os.ReadFile(filepath.Join(c.account, tokenFile))
	if err != nil {
		return fmt.Errorf("read the token of the service account: %w", err)
	}
	u := c.base.JoinPath(path...)
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("ask the API server: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w: %w", method, u.Path, err, errdefs.ErrUnavailable)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s: %w", method, u.Path, statusError(resp.StatusCode, p))
	case len(p) > maxAnswer:
		return fmt.Errorf("%s %s: the answer is larger than %d bytes: %w", method, u.Path, maxAnswer, errdefs.ErrOutOfRange)
	}
	if err := json.Unmarshal(p, v); err != nil {
		return fmt.Errorf("%s %s: %w", method, u.Path, err)
	}
	return nil
}

// statusError returns the error of a response that is not 200.
func statusError(code int, body []byte) error {
	var status struct{ Message string }
	if json.Unmarshal(body, &status) != nil || status.Message == "" {
		status.Message = http.StatusText(code)
	}
	if len(status.Message) > maxMessage {
		status.Message = status.Message[:maxMessage]
	}
	err := errors.New(status.Message)
	switch {
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	case code == http.StatusConflict, code == http.StatusUnprocessableEntity: // 422: a failed test of a JSON patch
		return fmt.Errorf("%w: %w", err, errdefs.ErrConflict)
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return fmt.Errorf("status %d: %w: %w", code, err, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("status %d: %w", code, err)
}
