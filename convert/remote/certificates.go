package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// certificates returns the files that containerd uses for a host without a hosts.toml: *.crt are CAs, *.cert are
// certificates of a client. The directory of a closed registry has a hosts.toml, and those in the directory of all
// hosts continue to count beside it.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/hosts.md
func (c *Client) certificates(host string) (cas, clients []string, err error) {
	if c.opts.CertsDirs == nil {
		return nil, nil, nil
	}
	for _, root := range c.opts.CertsDirs() {
		own, err := hostDir(root, host)
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, nil, err
		}
		for _, dir := range []string{own, filepath.Join(root, defaultDir)} {
			entries, err := os.ReadDir(dir)
			if err != nil && !missing(err) {
				return nil, nil, err
			}
			for _, e := range entries {
				switch filepath.Ext(e.Name()) {
				case ".crt":
					cas = append(cas, filepath.Join(dir, e.Name()))
				case ".cert":
					clients = append(clients, filepath.Join(dir, e.Name()))
				}
			}
			if len(cas)+len(clients) > 0 {
				return cas, clients, nil
			}
		}
	}
	return nil, nil, nil
}

// missing reports whether a file is not there for this process: it was replaced just now, or is root's.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// certified returns a transport for a host, and t below it, with the certificates that containerd has for the host, of
// the kinds that hosts.toml has set none of; unchanged if there are none.
func (c *Client) certified(host string, direct http.RoundTripper, t *http.Transport) (http.RoundTripper, *http.Transport, error) {
	cas, clients, err := c.certificates(host)
	if err != nil || len(cas)+len(clients) == 0 {
		return direct, t, err
	}
	t = t.Clone()
	if err := trust(t.TLSClientConfig, cas); err != nil {
		return nil, nil, err
	}
	if err := show(t.TLSClientConfig, clients); err != nil {
		return nil, nil, err
	}
	if _, ok := direct.(*http.Transport); !ok { // the loopback host of a test: https, then http
		return docker.NewHTTPFallback(t), t, nil
	}
	return t, t, nil
}

// trust adds the CAs in files to those of the system, unless a configuration has others.
func trust(t *tls.Config, files []string) (err error) {
	if t.RootCAs != nil || len(files) == 0 {
		return nil
	}
	if t.RootCAs, err = x509.SystemCertPool(); err != nil {
		return err
	}
	for _, file := range files {
		p, err := os.ReadFile(file)
		if err != nil && !missing(err) {
			return err
		}
		if err == nil && !t.RootCAs.AppendCertsFromPEM(p) {
			return fmt.Errorf("%s has no certificate in PEM: %w", file, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// show adds the client certificates in files, unless a configuration has others. The key is beside each, or in it.
func show(t *tls.Config, files []string) error {
	if len(t.Certificates) > 0 {
		return nil
	}
	for _, file := range files {
		key := strings.TrimSuffix(file, ".cert") + ".key"
		if _, err := os.Stat(key); errors.Is(err, fs.ErrNotExist) {
			key = file
		}
		pair, err := tls.LoadX509KeyPair(file, key)
		if err != nil && !missing(err) {
			return fmt.Errorf("%s: %w: %w", file, err, errdefs.ErrInvalidArgument)
		}
		if err == nil {
			t.Certificates = append(t.Certificates, pair)
		}
	}
	return nil
}
