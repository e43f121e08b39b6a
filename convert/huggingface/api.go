package huggingface

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// Limits of what is read of a repository.
const (
	maxFiles     = 10_000
	maxPages     = 100
	maxPage      = 8 << 20   // bytes of one response of the API
	maxSmall     = 16 << 20  // bytes of a file that is not in LFS; the Hub accepts no larger ones
	maxAllSmall  = 256 << 20 // bytes of all such files
	maxSmalls    = 2000      // number of such files
	smallAtOnce  = 4
	maxRedirects = 5
)

// A file is a file of a tree.
type file struct {
	path   string
	size   int64
	oid    string        // object ID in git
	digest digest.Digest // empty if not known yet
}

// A call is a request to a Hub, with the requests needed to answer it.
type call struct {
	hub   *Hub
	ways  remote.Ways
	from  *http.Request
	token string // of the client; may be empty
}

// A refusal is a response that refuses a request.
type refusal struct {
	status  int
	code    string
	message string
	after   time.Duration // until it can be sent again; 0 if unknown
}

func (e *refusal) Error() string { return e.message }

func (e *refusal) answer(req *http.Request) *http.Response {
	resp := answer(req, e.status, e.code, e.message)
	if e.after > 0 {
		resp.Header.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.after.Seconds()))))
	}
	return resp
}

// What to do about a token.
const (
	giveToken  = "as HF_TOKEN of the node or as the password of a pull secret"
	otherToken = "the token may not read it: that is HF_TOKEN of the node, or the password of the pull secret"
)

// noRevision is the code for a revision that a repository does not have.
const noRevision = "MANIFEST_UNKNOWN"

func isNoRevision(err error) bool {
	e, ok := errors.AsType[*refusal](err)
	return ok && e.code == noRevision
}

// at returns a URL below the endpoint. Each part is a single element of its path.
func (h *Hub) at(parts ...string) *url.URL {
	u := *h.endpoint
	escaped := strings.TrimSuffix(u.EscapedPath(), "/")
	for _, p := range parts {
		escaped += "/" + url.PathEscape(p)
	}
	u.RawPath = escaped
	u.Path, _ = url.PathUnescape(escaped) // it was escaped here
	return &u
}

// file returns the URL of a file.
func (c *call) file(repo, commit, name string) *url.URL {
	parts := append(strings.Split(repo, "/"), "resolve", commit)
	return c.hub.at(append(parts, strings.Split(name, "/")...)...)
}

// api returns the API's URL of a repository.
func (c *call) api(repo string, below ...string) *url.URL {
	return c.hub.at(append(append([]string{"api", "models"}, strings.Split(repo, "/")...), below...)...)
}

// request returns a request without credentials.
func (c *call) request(ctx context.Context, u *url.URL) *http.Request {
	h := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": c.from.Header["User-Agent"]}
	return (&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: h}).WithContext(ctx)
}

// get sends a request to the Hub, and follows redirects within the Hub. The response is a success,
// or a redirect to another host.
func (c *call) get(ctx context.Context, u *url.URL, ranges string) (*http.Response, error) {
	for range maxRedirects {
		req := c.request(ctx, u)
		if ranges != "" {
			req.Header.Set("Range", ranges)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := c.ways.Host.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		switch {
		case resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusPartialContent:
			return resp, nil
		case resp.StatusCode < 300 || resp.StatusCode >= 400:
			return nil, c.refused(resp)
		}
		next, err := u.Parse(resp.Header.Get("Location"))
		if err != nil || resp.Header.Get("Location") == "" {
			resp.Body.Close()
			return nil, fmt.Errorf("the Hub redirects to no address: %w", errdefs.ErrUnavailable)
		}
		if next.Scheme != u.Scheme || next.Host != u.Host {
			resp.Header.Set("Location", next.String())
			return resp, nil // without the token: the client follows it by its own rules
		}
		resp.Body.Close()
		u = next
	}
	return nil, fmt.Errorf("the Hub redirects more than %d times: %w", maxRedirects, errdefs.ErrUnavailable)
}

// follow returns the answer to which a redirect to another host leads, which gets no token. It returns a response that
// is no redirect, and an error, unchanged.
func (c *call) follow(ctx context.Context, ranges string, resp *http.Response, err error) (*http.Response, error) {
	for hops := 0; err == nil && resp.StatusCode >= 300; hops++ {
		resp.Body.Close()
		from := resp.Request.URL
		u, bad := from.Parse(resp.Header.Get("Location"))
		switch {
		case bad != nil || resp.Header.Get("Location") == "" || u.User != nil || hops == maxRedirects:
			return nil, fmt.Errorf("the Hub redirects to no address, or more than %d times: %w", maxRedirects, errdefs.ErrUnavailable)
		case from.Scheme == "https" && u.Scheme != "https":
			return nil, fmt.Errorf("the Hub redirects from https to %.20q: %w", u.Scheme, errdefs.ErrPermissionDenied)
		}
		req := c.request(ctx, u)
		if ranges != "" {
			req.Header.Set("Range", ranges)
		}
		if resp, err = c.ways.Outside.RoundTrip(req); err != nil {
			return nil, fmt.Errorf("%.300q, where the Hub redirects to: %w", u.Host, err)
		}
		resp.Request = req
		switch status := resp.StatusCode; {
		case status == http.StatusTooManyRequests, status == http.StatusUnauthorized && c.token == "":
			return nil, c.refused(resp)
		case status < 200 || status >= 400:
			resp.Body.Close()
			err = fmt.Errorf("%.300q, where the Hub redirects to, answered %d: %w", u.Host, status, errdefs.ErrUnavailable)
			if status == http.StatusUnauthorized {
				err = fmt.Errorf("%.300q, where the Hub redirects to, gets no token and answered %d: %w", u.Host, status, errdefs.ErrPermissionDenied)
			}
		}
	}
	return resp, err
}

// refused closes a response that is not a success, and returns its error.
// https://github.com/huggingface/huggingface_hub/blob/v1.2.0/src/huggingface_hub/utils/_http.py
func (c *call) refused(resp *http.Response) error {
	defer resp.Body.Close()
	repo := c.repository()
	e := &refusal{resp.StatusCode, "UNKNOWN", fmt.Sprintf("the Hub answered %d", resp.StatusCode), pause(resp.Header, time.Now())}
	if m := resp.Header.Get("X-Error-Message"); m != "" {
		e.message += ": " + m[:min(len(m), 300)]
	}
	switch code := resp.Header.Get("X-Error-Code"); {
	case code == "GatedRepo":
		e.code = "DENIED"
		e.message = fmt.Sprintf("%s is gated: accept its conditions at %s with the account of the token", repo, c.hub.at(strings.Split(repo, "/")...))
		if c.token == "" {
			e.message += ", and give the token, " + giveToken
		} else {
			e.status = http.StatusForbidden // another challenge would bring the same token
		}
	case resp.StatusCode == http.StatusTooManyRequests:
		e.code, e.message = "TOOMANYREQUESTS", "the limit of requests is reached"
		if e.after > 0 {
			e.message += fmt.Sprintf(" for %v", e.after.Round(time.Second))
		}
		if c.token == "" {
			e.message += "; it is higher with a token, " + giveToken
		}
	case resp.StatusCode == http.StatusUnauthorized && c.token == "":
		e.code, e.message = "UNAUTHORIZED", repo+" is not there, or private: a token is needed, "+giveToken
	case resp.StatusCode == http.StatusUnauthorized:
		e.code, e.message = "UNAUTHORIZED", repo+" is not there, or "+otherToken
	case resp.StatusCode == http.StatusNotFound && code == "RepoNotFound" && c.token != "":
		e.code, e.message = "NAME_UNKNOWN", repo+" is not there, or "+otherToken
	case code == "RevisionNotFound":
		e.code, e.message = noRevision, repo+" has no such branch, tag, commit or quantisation"
	case resp.StatusCode == http.StatusNotFound:
		e.code, e.message = "NAME_UNKNOWN", "the Hub does not have it: "+repo
	}
	return e
}

// repository returns the repository of the request.
func (c *call) repository() string {
	rest, _ := strings.CutPrefix(c.from.URL.Path, "/v2/")
	org, rest, _ := strings.Cut(rest, "/")
	name, _, _ := strings.Cut(rest, "/")
	return org + "/" + name
}

// page sends a request to the API, decodes the response into v, and returns the URL of the next
// page, or "".
func (c *call) page(ctx context.Context, u *url.URL, v any) (next string, err error) {
	resp, err := c.get(ctx, u, "")
	if resp, err = c.follow(ctx, "", resp, err); err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the API of the Hub answered %d: %w", resp.StatusCode, errdefs.ErrUnavailable)
	}
	p, err := readPage(ctx, resp.Body)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(p, v); err != nil {
		return "", fmt.Errorf("response of the Hub: %w: %w", err, errdefs.ErrUnavailable)
	}
	return nextLink(resp.Header.Values("Link")), nil
}

// readPage reads a response. It reserves memory for a large response before it is read.
func readPage(ctx context.Context, body io.Reader) ([]byte, error) {
	var b bytes.Buffer
	for _, limit := range []int64{convert.SmallDocument, maxPage / 8, maxPage} {
		left := limit - int64(b.Len())
		if b.Len() > 0 {
			if err := convert.MakeRoom(ctx, left); err != nil {
				return nil, err
			}
		}
		n, err := io.Copy(&b, io.LimitReader(body, left))
		if err != nil {
			return nil, fmt.Errorf("response of the Hub: %w: %w", err, errdefs.ErrUnavailable)
		}
		if n < left {
			return b.Bytes(), nil
		}
	}
	return nil, fmt.Errorf("the Hub answered with more than %d bytes: %w", maxPage, errdefs.ErrInvalidArgument)
}

var linkRE = regexp.MustCompile(`<([^<>]*)>\s*;[^,]*\brel="?next"?`)

// nextLink returns the URL of the next page.
// https://www.rfc-editor.org/rfc/rfc8288#section-3
func nextLink(values []string) string {
	if m := linkRE.FindStringSubmatch(strings.Join(values, ", ")); m != nil {
		return m[1]
	}
	return ""
}

var commitRE = regexp.MustCompile(`^[0-9a-f]{40}$`)

// revision returns the commit of a revision.
func (c *call) revision(ctx context.Context, repo, revision string) (commit string, err error) {
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := c.page(ctx, c.api(repo, "revision", revision), &info); err != nil {
		return "", err
	}
	if !commitRE.MatchString(info.SHA) || commitRE.MatchString(revision) && revision != info.SHA {
		return "", fmt.Errorf("the Hub says that %.100q is the commit %.100q: %w", revision, info.SHA, errdefs.ErrUnavailable)
	}
	return info.SHA, nil
}

// tree returns the files of a commit, except those of git itself.
func (c *call) tree(ctx context.Context, repo, commit string) ([]file, error) {
	var all []file
	u := c.api(repo, "tree", commit)
	u.RawQuery = "recursive=true"
	for range maxPages {
		var entries []struct {
			Type string
			Path string
			Size int64
			OID  string
			LFS  *struct {
				OID  string
				Size int64
			}
		}
		next, err := c.page(ctx, u, &entries)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Type == "directory" || strings.HasPrefix(path.Base(e.Path), ".git") {
				continue
			}
			f := file{path: e.Path, size: e.Size, oid: e.OID}
			if p, err := filetable.CleanPath(e.Path); err != nil || p != e.Path || e.Type != "file" {
				return nil, fmt.Errorf("%.300q is a %.100q, or has no path of a file: %w", e.Path, e.Type, errdefs.ErrInvalidArgument)
			}
			if e.LFS != nil {
				f.size = e.LFS.Size
				if f.digest, err = verify.ParseDigest("sha256:" + e.LFS.OID); err != nil {
					return nil, fmt.Errorf("%q: %w", e.Path, err)
				}
			}
			all = append(all, f)
		}
		if len(all) > maxFiles {
			return nil, fmt.Errorf("%s has more than %d files: %w", repo, maxFiles, errdefs.ErrInvalidArgument)
		}
		if next == "" {
			return all, nil
		}
		to, err := u.Parse(next)
		if err != nil {
			return nil, fmt.Errorf("the next page of the tree has no address: %w", errdefs.ErrUnavailable)
		}
		u.RawQuery = to.RawQuery // of a page here, also if a mirror repeats the address of the Hub
	}
	return nil, fmt.Errorf("the tree of %s has more than %d pages: %w", repo, maxPages, errdefs.ErrInvalidArgument)
}

// hash reads the files whose digests are not known, and sets the digests.
func (c *call) hash(ctx context.Context, repo, commit string, files []file) error {
	var sum int64
	n := 0
	for _, f := range files {
		if f.digest == "" {
			sum, n = sum+f.size, n+1
		}
		if f.size < 0 || f.digest == "" && f.size > maxSmall || sum > maxAllSmall || n > maxSmalls {
			return fmt.Errorf("%s: %q, of %d bytes, is too large to hash in advance: files that are not in LFS have at most %d bytes, and %d together, in %d files: %w",
				repo, f.path, f.size, maxSmall, maxAllSmall, maxSmalls, errdefs.ErrInvalidArgument)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(smallAtOnce)
	for i := range files {
		f := &files[i]
		b := blob{repo, f.oid, f.size}
		if f.digest == "" {
			f.digest = c.hub.digests.get(b)
		}
		if f.digest != "" {
			continue
		}
		g.Go(func() (err error) {
			if f.digest, err = c.hashFile(ctx, c.file(repo, commit, f.path), *f); err == nil {
				c.hub.digests.put(b, f.digest)
			}
			if _, refused := errors.AsType[*refusal](err); err != nil && !refused {
				err = fmt.Errorf("%q: %w", f.path, err)
			}
			return err
		})
	}
	return g.Wait()
}

// hashFile returns the digest of a file, whose git object ID must match.
func (c *call) hashFile(ctx context.Context, u *url.URL, f file) (digest.Digest, error) {
	resp, err := c.get(ctx, u, "")
	if resp, err = c.follow(ctx, "", resp, err); err != nil {
		return "", err
	}
	defer resp.Body.Close()
	git, sum := sha1.New(), digest.SHA256.Hash()
	fmt.Fprintf(git, "blob %d\x00", f.size)
	n, err := io.Copy(io.MultiWriter(git, sum), io.LimitReader(resp.Body, f.size+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	case n != f.size || hex.EncodeToString(git.Sum(nil)) != f.oid:
		return "", fmt.Errorf("the Hub gave %d bytes that are not those of the commit: %w", n, errdefs.ErrDataLoss)
	}
	return digest.NewDigest(digest.SHA256, sum), nil
}
