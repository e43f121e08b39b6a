// Ballast-keyless tells who made a keyless signature: it reads a keyless.Request from its standard input and writes a
// keyless.Answer to its standard output. "ballast-keyless sign" makes such signatures: it reads a keyless.SignRequest
// and writes a keyless.SignAnswer. ballastd starts the first, and ballast both; they do not link what it links.
//
// It is in the product's module because that changes no version of what ballastd and ballast link: 70 modules, the same
// without and with sigstore-go. In that of ballast-fleet, its 82 modules would share a graph with those of Kubernetes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/ballast-dev/ballast/convert/signature/keyless"
	"github.com/opencontainers/go-digest"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"golang.org/x/sys/unix"
)

// Limits of the process.
const (
	maxData    = 256 << 20 // bytes of memory
	maxSeconds = 10        // of one processor
)

func main() {
	err := fmt.Errorf("usage: %s [%s]", keyless.Name, keyless.SignCommand)
	switch args := os.Args[1:]; {
	case len(args) == 0:
		err = run(os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == keyless.SignCommand:
		err = runSign(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run answers a request, after it has given up what it does not need for that.
func run(in io.Reader, out io.Writer) error {
	if err := confine(false); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	var r keyless.Request
	if err := json.NewDecoder(io.LimitReader(in, keyless.MaxRequest)).Decode(&r); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	a, err := answer(r)
	if err != nil {
		a = keyless.Answer{Problem: fmt.Sprintf("%.1000s", err)}
	}
	return json.NewEncoder(out).Encode(a)
}

// confine makes the process unable to gain privileges, to write files, and to use much. Unless it signs, and has to
// talk to services for the user who started it, it can open nothing.
func confine(signs bool) error {
	runtime.GOMAXPROCS(1)
	debug.SetMemoryLimit(maxData / 2)
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("no new privileges: %w (is it built without CGO_ENABLED=0?)", errno)
	}
	limits := map[int]uint64{
		unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: 0, unix.RLIMIT_DATA: maxData, unix.RLIMIT_CPU: maxSeconds,
		unix.RLIMIT_NOFILE: 0, // neither files nor sockets; the pipes are open
	}
	if signs {
		delete(limits, unix.RLIMIT_NOFILE)
		limits[unix.RLIMIT_DATA], limits[unix.RLIMIT_CPU] = 4*maxData, 6*maxSeconds
	}
	for resource, limit := range limits {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit of resource %d: %w", resource, err)
		}
	}
	return nil
}

// answer verifies a bundle.
func answer(r keyless.Request) (a keyless.Answer, err error) {
	trusted, err := root.NewTrustedRootFromJSON(r.TrustedRoot)
	if err != nil {
		return a, fmt.Errorf("trusted root: %w", err)
	}
	// What the root has is required: without it, a time that only the signer claims would be believed, or a certificate
	// that nobody can find.
	options := []verify.VerifierOption{verify.WithObserverTimestamps(1), verify.WithoutStatementPredicate()}
	if len(trusted.RekorLogs()) > 0 {
		options = append(options, verify.WithTransparencyLog(1))
	}
	if len(trusted.CTLogs()) > 0 {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	verifier, err := verify.NewVerifier(trusted, options...)
	if err != nil {
		return a, err
	}
	var b bundle.Bundle
	if err := b.UnmarshalJSON(r.Bundle); err != nil {
		return a, fmt.Errorf("bundle: %w", err)
	}
	envelope := b.GetDsseEnvelope()
	if envelope == nil {
		return a, errors.New("bundle: it has no signed statement")
	}
	// Which signer is trusted and what is signed is for the caller to judge.
	res, err := verifier.Verify(&b, verify.NewPolicy(verify.WithoutArtifactUnsafe(), verify.WithoutIdentitiesUnsafe()))
	if err != nil {
		return a, err
	}
	if res.Signature == nil || res.Signature.Certificate == nil {
		return a, errors.New("it was not made with a certificate")
	}
	c := res.Signature.Certificate
	if c.Issuer == "" || c.SubjectAlternativeName == "" {
		return a, errors.New("the certificate names no issuer or no subject")
	}
	signed := digest.FromBytes(dsse.PAE(envelope.GetPayloadType(), envelope.GetPayload()))
	return keyless.Answer{Signed: signed, Issuer: c.Issuer, Subject: c.SubjectAlternativeName}, nil
}
