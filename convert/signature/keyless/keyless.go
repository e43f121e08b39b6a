package keyless

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Name is the name of the program.
const Name = "ballast-keyless"

// MaxRequest limits a Request in JSON, in bytes: a bundle of 8 MiB and a trusted root of 1 MiB, in base64.
const MaxRequest = 13 << 20

// Limits of a run.
const (
	maxAnswer  = 64 << 10 // bytes of an answer, and of a message of a program that fails
	maxName    = 4 << 10  // bytes of an issuer, a subject or a problem
	maxTime    = 20 * time.Second
	maxRunning = 2
)

// A Request is what the program reads from its standard input, as JSON.
type Request struct {
	TrustedRoot []byte `json:"trustedRoot"` // a file with application/vnd.dev.sigstore.trustedroot+json
	Bundle      []byte `json:"bundle"`
}

// An Answer is what the program writes to its standard output, as JSON: a problem, or all of the others.
type Answer struct {
	Problem string        `json:"problem,omitempty"` // why the signature is not valid
	Signed  digest.Digest `json:"signed,omitempty"`  // sha256 of the signed bytes: payload type and payload (PAE of DSSE)
	Issuer  string        `json:"issuer,omitempty"`  // who vouches for the subject: an issuer of OpenID Connect
	Subject string        `json:"subject,omitempty"` // the name in the certificate: an email address or a URI
}

// A Program starts ballast-keyless. The zero value starts the one that is beside the running executable.
type Program struct{ Path string }

// turns are those of processes.
var turns = make(chan struct{}, maxRunning)

// Verify asks about a bundle. It returns errdefs.ErrPermissionDenied if the signature is not valid, and
// errdefs.ErrUnavailable if there is no answer: the program is missing, has failed, or was too slow.
func (p *Program) Verify(ctx context.Context, r Request) (Answer, error) {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("wait for %s: %w: %w", Name, context.Cause(ctx), errdefs.ErrUnavailable)
	}
	in, err := json.Marshal(r) // in its turn, for it is larger than the bundle
	if err != nil {
		return Answer{}, err
	}
	if len(in) > MaxRequest {
		return Answer{}, fmt.Errorf("keyless signature of %d bytes: %w", len(r.Bundle), errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	cmd, err := p.command(ctx)
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	out, err := run(cmd, in, maxAnswer, Token{})
	if err != nil {
		return Answer{}, err
	}
	a, err := parseAnswer(out)
	switch {
	case err != nil:
		return Answer{}, fmt.Errorf("%s: %w", cmd.Path, err)
	case a.Problem != "":
		return Answer{}, fmt.Errorf("keyless signature: %.400q: %w", a.Problem, errdefs.ErrPermissionDenied)
	}
	return a, nil
}

// run returns what a program answers to in, at most limit bytes. It returns errdefs.ErrUnavailable with what the
// program says when it fails, without the secret.
func run(cmd *exec.Cmd, in []byte, limit int, secret Token) ([]byte, error) {
	out, failed := limited{limit: limit}, limited{limit: maxAnswer}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &failed
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %.200q: %w", cmd.Path, err, secret.Redact(failed.String()), errdefs.ErrUnavailable)
	}
	return out.Bytes(), nil
}

// Find returns the path of the program, or an error that says where to install it.
func (p *Program) Find() (string, error) {
	path := p.Path
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		path = filepath.Join(filepath.Dir(self), Name)
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("keyless signatures need %s: install it in %s", Name, filepath.Dir(path))
	}
	return path, nil
}

// command returns the command, with a user of its own if the caller is root.
func (p *Program) command(ctx context.Context) (*exec.Cmd, error) {
	path, err := p.Find()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{}, "/", time.Second
	if os.Geteuid() == 0 {
		id := userID()
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	}
	return cmd, nil
}

// userID returns an id of a range that neither distributions, systemd nor directories of users give away, another for
// each process: one of the same user could change what this one answers.
// https://github.com/systemd/systemd/blob/v257/docs/UIDS-GIDS.md
func userID() uint32 { return 0x78000000 + rand.Uint32N(0x07ff0000) }

// parseAnswer parses an answer. It returns errdefs.ErrUnavailable for anything that the program does not write.
func parseAnswer(p []byte) (a Answer, err error) {
	d := json.NewDecoder(bytes.NewReader(p))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("answer: %w: %w", err, errdefs.ErrUnavailable)
	}
	if _, err := d.Token(); err != io.EOF {
		return Answer{}, fmt.Errorf("answer: more than one: %w", errdefs.ErrUnavailable)
	}
	whole := a.Issuer != "" && a.Subject != ""
	if _, err := verify.ParseDigest(a.Signed.String()); err != nil {
		whole = false
	}
	if (a.Problem == "") != whole || max(len(a.Problem), len(a.Issuer), len(a.Subject)) > maxName || a.Problem != "" && a != (Answer{Problem: a.Problem}) {
		return Answer{}, fmt.Errorf("answer: neither a problem nor a signer: %w", errdefs.ErrUnavailable)
	}
	return a, nil
}

// A limited buffer refuses more than limit bytes.
type limited struct {
	bytes.Buffer
	limit int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.limit {
		return 0, fmt.Errorf("more than %d bytes", l.limit)
	}
	return l.Buffer.Write(p)
}
