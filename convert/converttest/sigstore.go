package converttest

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/mediatype"
)

// A Sigstore stands for the services that make keyless signatures, over HTTP, each with a key of its own. Its rules are
// those of the services, as far as a client can meet them:
//
//	Fulcio  a token of its issuer, for the audience "sigstore", that has not expired, and a signature of the name in it
//	        by the key of the certificate, or 400; a certificate for ten minutes, for code signing, with the name and the
//	        issuer. There is no log of certificates, as in most instances of one's own.
//	        https://github.com/sigstore/fulcio/blob/v1.8.8/pkg/server/grpc_server.go
//	        https://github.com/sigstore/fulcio/blob/v1.8.8/docs/oid-info.md
//	Rekor   version 1, entries of type dsse 0.0.1: an envelope whose signature is valid, or 400. Each entry is alone in a
//	        tree, which a real log does not do.
//	        https://github.com/sigstore/rekor/blob/v1.5.3/pkg/types/dsse/v0.0.1/entry.go
//	GitHub  the token of a job, for its request token and an audience, or 401.
//	        https://docs.github.com/en/actions/reference/security/oidc
type Sigstore struct {
	*httptest.Server
	Issuer        string // of its tokens
	SigningConfig string // path of a file
	TrustedRoot   string // path of a file

	// Before, if not nil, can answer a request and return true. Set it before the first request.
	Before func(http.ResponseWriter, *http.Request) bool

	issuer, ca, log *ecdsa.PrivateKey
	root            *x509.Certificate
	requestToken    string
}

// NewSigstore starts the services, until the end of the test.
func NewSigstore(t testing.TB) *Sigstore {
	s := &Sigstore{Issuer: "https://issuer.example", requestToken: "request-" + rand.Text()}
	for _, key := range []**ecdsa.PrivateKey{&s.issuer, &s.ca, &s.log} {
		var err error
		if *key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root", Organization: []string{"sigstore.test"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, s.ca.Public(), s.ca)
	if err == nil {
		s.root, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v2/signingCert", answer(s.certificate))
	mux.HandleFunc("POST /api/v1/log/entries", answer(s.entry))
	mux.HandleFunc("GET /github", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+s.requestToken || r.FormValue("api-version") == "" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(object{"value": s.Token(object{"sub": "https://github.example/team/models/.github/workflows/release.yml@refs/heads/main", "aud": r.FormValue("audience")})})
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Before == nil || !s.Before(w, r) {
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	key, keyID := s.logKey()
	since := object{"start": "2020-01-01T00:00:00Z"}
	service := []object{{"url": s.URL, "majorApiVersion": 1, "validFor": since, "operator": "test"}}
	dir := t.TempDir()
	s.SigningConfig, s.TrustedRoot = filepath.Join(dir, "signing_config.json"), filepath.Join(dir, "trusted_root.json")
	for name, v := range map[string]object{
		s.SigningConfig: {"mediaType": mediatype.SigningConfig, "caUrls": service, "rekorTlogUrls": service, "rekorTlogConfig": object{"selector": "ANY"}, "tsaConfig": object{"selector": "ANY"}},
		s.TrustedRoot: {
			"mediaType":              mediatype.TrustedRoot,
			"certificateAuthorities": []object{{"uri": s.URL, "certChain": object{"certificates": []object{{"rawBytes": der}}}, "validFor": since}},
			"tlogs": []object{{
				"baseUrl": s.URL, "hashAlgorithm": "SHA2_256", "logId": object{"keyId": keyID},
				"publicKey": object{"rawBytes": key, "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since},
			}},
		},
	} {
		if err := os.WriteFile(name, mustJSON(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// object is an object in JSON.
type object = map[string]any

// signed returns the signature of bytes.
func signed(key *ecdsa.PrivateKey, p []byte) []byte {
	sum := sha256.Sum256(p)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		panic(err)
	}
	return sig
}

func (s *Sigstore) logKey() (der, id []byte) {
	der, err := x509.MarshalPKIXPublicKey(s.log.Public())
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(der)
	return der, sum[:]
}

// Token returns a token for an hour with claims, which can change the others.
func (s *Sigstore) Token(claims map[string]any) string {
	all := object{"iss": s.Issuer, "aud": "sigstore", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for k, v := range claims {
		all[k] = v
	}
	text := base64.RawURLEncoding.EncodeToString(mustJSON(object{"alg": "ES256", "typ": "JWT"})) + "." + base64.RawURLEncoding.EncodeToString(mustJSON(all))
	return text + "." + base64.RawURLEncoding.EncodeToString(signed(s.issuer, []byte(text))) // in ASN.1, unlike others
}

// GitHub returns the variables of a job in GitHub Actions. Its tokens name a workflow.
func (s *Sigstore) GitHub() (requestURL, requestToken string) {
	return s.URL + "/github?api-version=2.0", s.requestToken
}

// answer answers with an object, or 400.
func answer(by func(w http.ResponseWriter, r *http.Request) (object, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := by(w, r)
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			v = object{"code": http.StatusBadRequest, "message": err.Error()}
		} else if w.Header().Get("ETag") != "" {
			w.WriteHeader(http.StatusCreated)
		}
		_, _ = w.Write(mustJSON(v))
	}
}

// certificate is that of Fulcio.
func (s *Sigstore) certificate(_ http.ResponseWriter, r *http.Request) (object, error) {
	//lint:ignore ST1005 the words of Fulcio
	refused := fmt.Errorf("There was an error processing the identity token")
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, refused
	}
	sig, _ := base64.RawURLEncoding.DecodeString(parts[2])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	p, _ := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Issuer   string `json:"iss"`
		Subject  string `json:"sub"`
		Email    string `json:"email"`
		Audience string `json:"aud"`
		Expires  int64  `json:"exp"`
	}
	if err := json.Unmarshal(p, &claims); err != nil || !ecdsa.VerifyASN1(&s.issuer.PublicKey, sum[:], sig) || claims.Issuer != s.Issuer ||
		claims.Audience != "sigstore" || time.Now().Unix() > claims.Expires {
		return nil, refused
	}
	var req struct {
		PublicKeyRequest struct {
			PublicKey struct {
				Content string `json:"content"`
			} `json:"publicKey"`
			Proof []byte `json:"proofOfPossession"`
		} `json:"publicKeyRequest"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(req.PublicKeyRequest.PublicKey.Content))
	if block == nil {
		return nil, fmt.Errorf("no public key")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	name := sha256.Sum256([]byte(cmp.Or(claims.Email, claims.Subject)))
	if !ok || !ecdsa.VerifyASN1(key, name[:], req.PublicKeyRequest.Proof) {
		//lint:ignore ST1005 the words of Fulcio
		return nil, fmt.Errorf("The signature supplied in the request could not be verified")
	}
	issuer, err := asn1.MarshalWithParams(claims.Issuer, "utf8")
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(10 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}, Value: issuer}},
	}
	if template.EmailAddresses = []string{claims.Email}; claims.Email == "" {
		u, err := url.Parse(claims.Subject)
		if err != nil {
			return nil, err
		}
		template.EmailAddresses, template.URIs = nil, []*url.URL{u}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.root, key, s.ca)
	if err != nil {
		return nil, err
	}
	var chain []string
	for _, c := range [][]byte{der, s.root.Raw} {
		chain = append(chain, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})))
	}
	return object{"signedCertificateDetachedSct": object{"chain": object{"certificates": chain}}}, nil
}

// entry is that of Rekor.
func (s *Sigstore) entry(w http.ResponseWriter, r *http.Request) (object, error) {
	var req struct {
		Kind    string `json:"kind"`
		Version string `json:"apiVersion"`
		Spec    struct {
			Proposed struct {
				Envelope  string   `json:"envelope"`
				Verifiers [][]byte `json:"verifiers"`
			} `json:"proposedContent"`
		} `json:"spec"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		return nil, err
	}
	var envelope struct {
		Payload     []byte `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	}
	err := json.Unmarshal([]byte(req.Spec.Proposed.Envelope), &envelope)
	if err != nil || req.Kind != "dsse" || req.Version != "0.0.1" || len(envelope.Signatures) != 1 || len(req.Spec.Proposed.Verifiers) != 1 {
		return nil, fmt.Errorf("no entry of type dsse 0.0.1 with one signature: %v", err)
	}
	verifier := req.Spec.Proposed.Verifiers[0]
	block, _ := pem.Decode(verifier)
	if block == nil {
		return nil, fmt.Errorf("no certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, err
	}
	pae := fmt.Sprintf("DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(envelope.Payload), envelope.Payload)
	if err := cert.CheckSignature(x509.ECDSAWithSHA256, []byte(pae), envelope.Signatures[0].Sig); err != nil {
		return nil, err
	}
	hash := func(p []byte) object {
		sum := sha256.Sum256(p)
		return object{"algorithm": "sha256", "value": hex.EncodeToString(sum[:])}
	}
	// The keys of objects are sorted, as canonical JSON has them.
	body := mustJSON(object{"apiVersion": "0.0.1", "kind": "dsse", "spec": object{
		"envelopeHash": hash([]byte(req.Spec.Proposed.Envelope)), "payloadHash": hash(envelope.Payload),
		"signatures": []object{{"signature": base64.StdEncoding.EncodeToString(envelope.Signatures[0].Sig), "verifier": verifier}},
	}})
	_, id := s.logKey()
	root := sha256.Sum256(append([]byte{0}, body...)) // RFC 6962
	host, _, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	note := fmt.Sprintf("%s - 1\n1\n%s\n", host, base64.StdEncoding.EncodeToString(root[:]))
	checkpoint := note + "\n\u2014 " + host + " " + base64.StdEncoding.EncodeToString(append(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(id)), signed(s.log, []byte(note))...)) + "\n"
	promise := object{"body": body, "integratedTime": time.Now().Unix(), "logID": hex.EncodeToString(id), "logIndex": 0}
	set := signed(s.log, mustJSON(promise))
	promise["verification"] = object{"signedEntryTimestamp": set, "inclusionProof": object{
		"checkpoint": checkpoint, "hashes": []string{}, "logIndex": 0, "treeSize": 1, "rootHash": hex.EncodeToString(root[:]),
	}}
	uuid := hex.EncodeToString(root[:])
	w.Header().Set("ETag", uuid)
	w.Header().Set("Location", "/api/v1/log/entries/"+uuid)
	return object{uuid: promise}, nil
}
