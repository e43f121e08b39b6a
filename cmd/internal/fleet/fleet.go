package fleet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits of a question.
const (
	maxAsked  = 8               // addresses per question
	askTime   = 3 * time.Second // for all of them
	maxAnswer = 4 << 10         // bytes
)

const originsPath = "/v1/origins/"

// Keys are the files with which nodes authenticate each other, in PEM.
type Keys struct{ CA, Cert, Key string }

// load reads the files.
func (k Keys) load() (*x509.CertPool, tls.Certificate, error) {
	p, err := os.ReadFile(k.CA)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(p) {
		return nil, tls.Certificate{}, fmt.Errorf("%s has no certificates: %w", k.CA, errdefs.ErrInvalidArgument)
	}
	cert, err := tls.LoadX509KeyPair(k.Cert, k.Key)
	return pool, cert, err
}

// Server returns the TLS configuration for serving other nodes. It returns an error if the files
// cannot be read now.
func (k Keys) Server() (*tls.Config, error) {
	if _, _, err := k.load(); err != nil {
		return nil, fmt.Errorf("keys of the fleet: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			pool, cert, err := k.load()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
			}, err
		},
	}, nil
}

// Handler serves the origins of the images of a store.
func Handler(s *store.Store) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+originsPath+"{digest}", func(w http.ResponseWriter, r *http.Request) {
		d, err := verify.ParseDigest(r.PathValue("digest"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		im, err := s.Image(d)
		if err != nil || im.Origin.Digest == im.Manifest { // it was converted by others
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		hint := registry.Hint{Origin: im.Origin.Digest, Runner: format.Variant(im.Origin.Format)}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(hint) // on an error the client is gone
	})
	return mux
}

// A Client asks other nodes.
type Client struct {
	Keys  Keys
	Nodes []string // "host:port"
	Log   *slog.Logger
}

// Hints returns the answers of other nodes for the origin of an image, without duplicates, in the
// order of their arrival. Nodes that cannot be reached are logged.
func (c *Client) Hints(ctx context.Context, d digest.Digest) (hints []registry.Hint) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	pool, cert, err := c.Keys.load()
	if err != nil {
		c.Log.WarnContext(ctx, "other nodes cannot be asked", "err", err)
		return nil
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, a := range c.addresses(ctx) {
		wg.Go(func() {
			hint, err := ask(ctx, a, &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{cert}, ServerName: a.name}, d)
			if err != nil {
				if !errdefs.IsNotFound(err) {
					c.Log.DebugContext(ctx, "another node does not say what an image was made of", "node", a.name, "address", a.address, "err", err)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(hints, hint) {
				hints = append(hints, hint)
			}
		})
	}
	wg.Wait()
	return hints
}

// An address is a possible address of a node, with the name for its certificate.
type address struct{ address, name string }

// addresses returns some of the addresses of all nodes.
func (c *Client) addresses(ctx context.Context) (all []address) {
	for _, n := range c.Nodes {
		host, port, err := net.SplitHostPort(n)
		if err != nil {
			continue // the configuration was checked
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			c.Log.DebugContext(ctx, "another node is not found", "node", n, "err", err)
			continue
		}
		for _, ip := range ips {
			all = append(all, address{net.JoinHostPort(ip, port), host})
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), maxAsked)]
}

// ask asks one node. It returns errdefs.ErrNotFound if the node does not have the image.
func ask(ctx context.Context, a address, t *tls.Config, d digest.Digest) (hint registry.Hint, err error) {
	once := &http.Transport{TLSClientConfig: t, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.address+originsPath+d.String(), nil)
	if err != nil {
		return hint, err
	}
	resp, err := once.RoundTrip(req)
	if err != nil {
		return hint, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return hint, errdefs.ErrNotFound
	default:
		return hint, errors.New(resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&hint); err != nil {
		return hint, err
	}
	_, err = verify.ParseDigest(hint.Origin.String())
	return hint, err
}
