package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A flood is a registry that has a manifest for every tag and every digest, and blobs.
type flood struct {
	manifest func(object string) []byte // by a tag or a digest; nil if there is no manifest
	blobs    map[digest.Digest][]byte
}

// ServeHTTP implements http.Handler.
func (f *flood) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	dir, last := filepath.Split(r.URL.Path)
	if strings.HasSuffix(dir, "/blobs/") {
		p, ok := f.blobs[digest.Digest(last)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
		return
	}
	p := f.manifest(last)
	if p == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
}

// modelConfig is the config of the models of a flood.
var modelConfig = []byte(`{"descriptor":{},"config":{},"modelfs":{"type":"layers","diffIds":[]}}`)

// largeManifest is a ModelPack of n raw layers, each with its own blob.
func largeManifest(seed string, n int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cncf.model.manifest.v1+json","config":{"mediaType":"application/vnd.cncf.model.config.v1+json","digest":"%s","size":%d},"layers":[`,
		digest.FromBytes(modelConfig), len(modelConfig))
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"mediaType":"application/vnd.cncf.model.weight.v1.raw","digest":"%s","size":1,"annotations":{"org.cncf.model.filepath":"%d"}}`,
			digest.FromString(fmt.Sprint(seed, i)), i)
	}
	b.WriteString("]}")
	return b.Bytes()
}

// askFacade sends a request to the facade as containerd does: for a path below /v2/ at a host, with the
// credentials of a pull, if any.
func askFacade(t *testing.T, n *node.Node, method, path, host string, login *url.Userinfo) (status int, body string) {
	t.Helper()
	return askFacadeBy(t, n, n.FacadeClient(t), method, path, host, login)
}

// askFacadeBy is askFacade with a client that is reused.
func askFacadeBy(t *testing.T, n *node.Node, c *http.Client, method, path, host string, login *url.Userinfo) (status int, body string) {
	t.Helper()
	u := url.URL{Scheme: "https", Host: n.Facade, Path: "/v2/" + path, RawQuery: url.Values{"ns": {host}}.Encode()}
	req, err := http.NewRequestWithContext(t.Context(), method, u.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if login != nil {
		password, _ := login.Password()
		req.SetBasicAuth(login.Username(), password)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(p)
}

// peak returns the peak memory of the daemon, in bytes.
func peak(t *testing.T, n *node.Node) int64 {
	t.Helper()
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.Ballastd.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(p), "VmHWM:")
	var kb int64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// diskUse returns the disk usage of the files below dir, in bytes.
func diskUse(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		n += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestManyConversions converts many of the largest manifests of untrusted registries concurrently.
func TestManyConversions(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	const layers, atOnce = 38_000, 24 // of a manifest of 7.9 MB
	evil := &flood{blobs: map[digest.Digest][]byte{digest.FromBytes(modelConfig): modelConfig}}
	evil.manifest = func(tag string) []byte { return largeManifest(tag, layers) }
	host := func(i int) string { return fmt.Sprintf("r%d.evil", i/2) } // two models of each registry
	for i := 0; i < atOnce; i += 2 {
		n.Upstream(t, host(i), node.Serve(t, evil))
	}
	good := push(t, n, converttest.ModelPackRaw(converttest.Files([]byte("GGUF"))))
	var wg sync.WaitGroup
	var done, refused, idle atomic.Int64
	for i := range atOnce {
		wg.Go(func() {
			switch status, body := askFacade(t, n, "GET", fmt.Sprintf("m/x/manifests/t%d", i), host(i), nil); {
			case status == http.StatusOK:
				done.Add(1)
			case status == http.StatusTooManyRequests && strings.Contains(body, "limit conversion_memory"):
				refused.Add(1)
			case status == http.StatusForbidden && strings.Contains(body, "limit idle_documents"):
				idle.Add(1)
			default:
				t.Errorf("conversion %d: status %d: %.300s", i, status, body)
			}
		})
	}
	start := time.Now()
	mustPull(t, n, "ballast", good)
	t.Logf("another's pull took %v", time.Since(start))
	wg.Wait()
	t.Logf("%d converted, %d and %d refused, in %v; %d MiB", done.Load(), refused.Load(), idle.Load(), time.Since(start), peak(t, n)>>20)
	if done.Load() == 0 {
		t.Error("none was converted")
	}
	if got := peak(t, n); got > 300<<20 {
		t.Errorf("the daemon had %d MiB, want less than 300", got>>20)
	}
	for limit, want := range map[string]int64{"conversion_memory": refused.Load(), "idle_documents": idle.Load()} {
		if got := refusals(t, n, limit); got != float64(want) {
			t.Errorf("ballast_refused_total of %s: got %v, want %d", limit, got, want)
		}
	}
}

// refusals returns how often a limit has refused something, from the metrics.
func refusals(t *testing.T, n *node.Node, limit string) (count float64) {
	t.Helper()
	_, rest, ok := strings.Cut(string(n.Admin(t, "/metrics")), fmt.Sprintf("ballast_refused_total{limit=%q} ", limit))
	if _, err := fmt.Sscan(rest, &count); !ok || err != nil {
		t.Fatalf("no metric of limit %s: %v", limit, err)
	}
	return count
}

// TestIndexFan requests indexes of many models of an untrusted registry: what is kept of them is
// limited.
func TestIndexFan(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	evil := &flood{blobs: map[digest.Digest][]byte{digest.FromBytes(modelConfig): modelConfig}}
	pad := strings.Repeat("x", 7<<20)
	child := func(name string) []byte {
		return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cncf.model.manifest.v1+json","annotations":{"n":%q,"pad":%q},"config":{"mediaType":"application/vnd.cncf.model.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.cncf.model.weight.v1.raw","digest":%q,"size":1,"annotations":{"org.cncf.model.filepath":"a"}}]}`,
			name, pad, digest.FromBytes(modelConfig), len(modelConfig), digest.FromString(name))
	}
	names := map[string]string{} // by digest
	index := func(tag string, children int) []byte {
		var entries []string
		for i := range children {
			name := fmt.Sprint(tag, i)
			c := child(name)
			d := digest.FromBytes(c)
			names[d.String()] = name
			entries = append(entries, fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cncf.model.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":"a%d"}}`, d, len(c), i))
		}
		return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}`, strings.Join(entries, ","))
	}
	indexes := map[string][]byte{"wide": index("wide", 40)}
	for i := range 8 {
		tag := fmt.Sprint("narrow", i)
		indexes[tag] = index(tag, 2)
	}
	evil.manifest = func(object string) []byte {
		if name, ok := names[object]; ok {
			return child(name)
		}
		return indexes[object]
	}
	n.Upstream(t, "evil.test", node.Serve(t, evil))
	before := diskUse(t, n.Root())
	if status, body := askFacade(t, n, "GET", "idx/manifests/wide", "evil.test", nil); status != http.StatusForbidden || !strings.Contains(body, "limit index_documents") {
		t.Errorf("an index of 280 MiB: status %d: %.300s", status, body)
	}
	var last string
	for i := range 8 {
		var status int
		if status, last = askFacade(t, n, "GET", fmt.Sprint("idx/manifests/narrow", i), "evil.test", nil); status == http.StatusForbidden {
			break
		}
	}
	if !strings.Contains(last, "limit idle_documents") {
		t.Errorf("many indexes: the last answer is %.300s", last)
	}
	if got := diskUse(t, n.Root()) - before; got > 64<<20 {
		t.Errorf("%d MiB on the disk, want less than 64", got>>20)
	}
	mustPull(t, n, "ballast", push(t, n, converttest.ModelPackRaw(converttest.Files([]byte("GGUF")))))
	for _, limit := range []string{"index_documents", "idle_documents"} {
		if refusals(t, n, limit) == 0 {
			t.Errorf("ballast_refused_total of %s is 0", limit)
		}
	}
}

// TestCostlyModels resolves small artifacts that would become large tables.
func TestCostlyModels(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	evil := &flood{blobs: map[digest.Digest][]byte{digest.FromBytes(modelConfig): modelConfig}}
	manifests := map[string][]byte{}
	evil.manifest = func(object string) []byte { return manifests[object] }
	n.Upstream(t, "evil.test", node.Serve(t, evil))
	model := func(tag, mediaType string, annotations map[string]string, layers ...[]byte) {
		t.Helper()
		var descs []ocispec.Descriptor
		for _, p := range layers {
			d := digest.FromBytes(p)
			evil.blobs[d] = p
			descs = append(descs, ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(p)), Annotations: annotations})
		}
		var err error
		manifests[tag], err = json.Marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.cncf.model.manifest.v1+json",
			Config: ocispec.Descriptor{MediaType: "application/vnd.cncf.model.config.v1+json", Digest: digest.FromBytes(modelConfig), Size: int64(len(modelConfig))}, Layers: descs,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(tag, limit string) {
		t.Helper()
		start := time.Now()
		if status, body := askFacade(t, n, "GET", "m/manifests/"+tag, "evil.test", nil); status != http.StatusForbidden || !strings.Contains(body, "limit "+limit) {
			t.Errorf("%s: status %d: %.300s", tag, status, body)
		}
		t.Logf("%s: %v, %d MiB", tag, time.Since(start), peak(t, n)>>20)
	}

	model("members", "application/vnd.cncf.model.weight.v1.tar", nil, emptyFiles(t, "a", 60_000), emptyFiles(t, "b", 60_000))
	refused("members", "tar_members")

	var layers [][]byte
	var annotations map[string]string
	for i := range 8 {
		var p []byte
		p, annotations = manyChunks(240_000, byte(i), 0)
		layers = append(layers, p)
	}
	model("chunks", "application/vnd.cncf.model.weight.v1.tar+zstd", annotations, layers...)
	start := time.Now()
	status, body := askFacade(t, n, "HEAD", "m/manifests/chunks", "evil.test", nil)
	t.Logf("chunks: status %d %.300s, %v, %d MiB", status, body, time.Since(start), peak(t, n)>>20)
	if got := peak(t, n); got > 300<<20 {
		t.Errorf("the daemon had %d MiB, want less than 300", got>>20)
	}
}

// emptyFiles is a tar of n empty files.
func emptyFiles(t *testing.T, prefix string, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Name: prefix + strconv.Itoa(i), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// manyChunks returns a zstd:chunked layer with one file of n chunks of one byte, and its annotations,
// which are the same for each seed. Its table of contents has at least size bytes.
func manyChunks(n int, seed byte, size int) ([]byte, map[string]string) {
	one := digest.FromString("x")
	var toc bytes.Buffer
	fmt.Fprintf(&toc, `{"version":1,"entries":[{"type":"reg","name":"a","size":%d,"digest":"%s","offset":0,"endOffset":%d,"chunkSize":1,"chunkDigest":"%s"}`, n, one, n, one)
	for i := 1; i < n; i++ {
		fmt.Fprintf(&toc, `,{"type":"chunk","name":"a","offset":%d,"chunkSize":1,"chunkOffset":%d,"chunkDigest":"%s"%s}`, i, i, one, strings.Repeat(" ", max(0, (size-toc.Len())/(n-i)-150)))
	}
	toc.WriteString("]}")
	compressed := converttest.Compress(toc.Bytes(), filetable.CodecZstd)
	b := make([]byte, n)
	skippable := func(p []byte) {
		b = append(b, 0x50, 0x2a, 0x4d, 0x18)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	off := len(b) + 8
	skippable(compressed)
	skippable(bytes.Repeat([]byte{seed}, 64))
	return b, map[string]string{
		"org.cncf.model.filepath":                             "a",
		"io.github.containers.zstd-chunked.manifest-position": fmt.Sprintf("%d:%d:%d:1", off, len(compressed), toc.Len()),
		"io.github.containers.zstd-chunked.manifest-checksum": digest.FromBytes(compressed).String(),
	}
}

// stalls is a response that waits after half a MiB.
type stalls struct {
	http.ResponseWriter
	left  int
	begun func()
	end   <-chan struct{}
}

func (s *stalls) Write(p []byte) (int, error) {
	n, err := s.ResponseWriter.Write(p)
	if s.left -= n; s.left <= 0 && err == nil {
		s.left = math.MaxInt
		err = http.NewResponseController(s.ResponseWriter).Flush()
		s.begun()
		<-s.end
	}
	return n, err
}

// ordered is a model of a stranger whose repository has an order of its reads beside it, with as many ranges as there
// can be, each of a whole file of a GiB with digests of chunks.
type ordered struct {
	node.Artifact               // with the blobs of the order
	file          digest.Digest // which nobody has
	referrer      []byte        // the artifact with the order
}

func hostileOrder(t *testing.T, name string) ordered {
	t.Helper()
	m := ordered{file: digest.FromString(name)}
	src := &filetable.Source{Blob: m.file, Size: 1 << 30}
	for at := int64(0); at < src.Size; at += filetable.MaxChunk {
		src.Chunks = append(src.Chunks, filetable.Chunk{Offset: at, Size: filetable.MaxChunk, Digest: digest.FromString(fmt.Sprint(name, at))})
	}
	m.Artifact = tableImage(t, &filetable.Table{
		Version: filetable.Version,
		Origin:  filetable.Origin{Format: "modelpack", Digest: digest.FromString(name), Mapping: 1},
		Files:   []filetable.File{{Path: "0", Type: filetable.TypeReg, Mode: 0o644, Size: src.Size, Digest: m.file, Source: src}},
		Blobs:   []filetable.Blob{{Digest: m.file, Size: src.Size}},
	})
	o := filetable.Order{Version: filetable.OrderVersion}
	for range filetable.MaxOrderRanges {
		o.Ranges = append(o.Ranges, filetable.Range{Path: "0", Size: src.Size})
	}
	p, err := o.Encode()
	if err != nil {
		t.Fatal(err)
	}
	put := func(mediaType string, p []byte) ocispec.Descriptor {
		m.Blobs[digest.FromBytes(p)] = p
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(p), Size: int64(len(p))}
	}
	m.referrer, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: orderType,
		Config: put(ocispec.MediaTypeEmptyJSON, []byte("{}")), Layers: []ocispec.Descriptor{put(orderType, p)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// orderType is the type of an order of reads in a registry.
const orderType = "application/vnd.ballast.order.v1+json"

// index returns the list of the referrers of any manifest.
func (m ordered) index(t *testing.T) []byte {
	p, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{{
			MediaType: ocispec.MediaTypeImageManifest, ArtifactType: orderType, Digest: digest.FromBytes(m.referrer), Size: int64(len(m.referrer)),
		}},
	})
	if err != nil {
		t.Error(err)
	}
	return p
}

// TestHostileMix has strangers take what memory they can in all ways at once: the largest manifests, tables of
// contents of 55 MiB, files that are compressed with the largest window, orders of reads that name a file 8,192
// times, and models of sizes that no disk has.
func TestHostileMix(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	const manifests, tables, windows, orders, claims = 24, 6, 8, 4, 4
	evil := &flood{blobs: map[digest.Digest][]byte{digest.FromBytes(modelConfig): modelConfig}}
	ready := map[string][]byte{} // manifests by tag
	evil.manifest = func(tag string) []byte { return ready[tag] }
	for i := range manifests { // before anybody waits for them
		tag := fmt.Sprint("manifest", i)
		ready[tag] = largeManifest(tag, 38_000)
	}
	for i := range tables {
		blob, annotations := manyChunks(240_000, byte(i), 55<<20)
		d := digest.FromBytes(blob)
		evil.blobs[d] = blob
		var err error
		ready[fmt.Sprint("table", i)], err = json.Marshal(ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: "application/vnd.cncf.model.manifest.v1+json",
			Config: ocispec.Descriptor{MediaType: "application/vnd.cncf.model.config.v1+json", Digest: digest.FromBytes(modelConfig), Size: int64(len(modelConfig))},
			Layers: []ocispec.Descriptor{{MediaType: "application/vnd.cncf.model.weight.v1.tar+zstd", Digest: d, Size: int64(len(blob)), Annotations: annotations}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slow := map[digest.Digest]bool{}
	for i := range windows {
		plain := make([]byte, 160<<20) // zeros fill the window
		plain = append(plain, weights(byte(i), 1<<20)...)
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(128<<20), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		w.Write(plain)
		w.Close()
		c := converttest.GoodCarton([]byte("weights")).With(converttest.CartonFile{Path: "model/window", Data: plain, Method: 93})
		c.Zip = func(z *converttest.Zip) {
			for i := range z.Entries {
				if z.Entries[i].Name == "model/window" {
					z.Entries[i].Packed = b.Bytes()
				}
			}
		}
		artifact := converttest.CartonArtifact(c)
		for d, p := range artifact.Blobs {
			evil.blobs[d] = p
			slow[d] = true
		}
		ready[fmt.Sprint("window", i)] = artifact.Manifest
	}
	never := map[digest.Digest]*sync.Once{} // blobs that nobody has, for the first request
	for i := range claims {
		tag := fmt.Sprint("claim", i)
		d := digest.FromString(tag)
		never[d] = &sync.Once{}
		ready[tag] = bytes.Replace(largeManifest(tag, 1), []byte(digest.FromString(tag+"0")+`","size":1`), fmt.Appendf(nil, `%s","size":%d`, d, 100<<40), 1)
	}
	var beside []byte // a list of referrers
	for i := range orders {
		m := hostileOrder(t, fmt.Sprint("order", i))
		never[m.file], beside = &sync.Once{}, m.index(t)
		for d, p := range m.Blobs {
			evil.blobs[d] = p
		}
		for _, p := range [][]byte{m.Manifest, m.referrer} {
			ready[digest.FromBytes(p).String()] = p
		}
		ready[fmt.Sprint("order", i)] = m.Manifest
	}
	followed := make(chan struct{}, orders+claims)
	lastByte := fmt.Sprintf("bytes=%d-%d", 1<<30-1, 1<<30-1)
	begun, end := make(chan struct{}, 100), make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	defer release()
	slowly := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch d := digest.Digest(filepath.Base(r.URL.Path)); {
		case r.Method == http.MethodGet && slow[d]:
			w = &stalls{w, 512 << 10, func() { begun <- struct{}{} }, end}
		case strings.HasSuffix(filepath.Dir(r.URL.Path), "/referrers"):
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			w.Write(beside)
			return
		case never[d] != nil && r.Header.Get("Range") == lastByte: // which is requested before a model is shown
			w.Header().Set("Content-Range", "bytes "+strings.TrimPrefix(lastByte, "bytes=")+"/"+strconv.Itoa(1<<30))
			w.WriteHeader(http.StatusPartialContent)
			w.Write([]byte{0})
			return
		case never[d] != nil:
			never[d].Do(func() { followed <- struct{}{} })
			select {
			case <-end:
			case <-r.Context().Done():
			}
			return
		}
		evil.ServeHTTP(w, r)
	})
	host := func(i int) string { return fmt.Sprintf("r%d.evil", i) }
	for i := range manifests {
		n.Upstream(t, host(i), node.Serve(t, slowly))
	}
	good := push(t, n, converttest.ModelPackRaw(converttest.Files([]byte("GGUF"))))
	debug.FreeOSMemory() // of this process
	var wg sync.WaitGroup
	ask := func(host, tag string) {
		wg.Go(func() {
			status, body := askFacade(t, n, "GET", "m/x/manifests/"+tag, host, nil)
			if limited := strings.Contains(body, "limit conversion_memory") || strings.Contains(body, "limit idle_documents"); status != http.StatusOK && !limited {
				t.Errorf("%s: status %d: %.300s", tag, status, body)
			}
		})
	}
	start := time.Now()
	var unpacked sync.WaitGroup
	for i := range windows {
		unpacked.Go(func() {
			ref := fmt.Sprintf("%s/m/x:window%d", host(i), i)
			out := n.Ballast("prefetch", ref)
			if out.Err != nil { // on a busy machine, the server may stall for too long
				<-end
				out = n.Ballast("prefetch", ref)
			}
			if out.Err != nil {
				t.Errorf("window %d: %v\n%s", i, out.Err, out.Output())
			}
		})
	}
	for range windows {
		select {
		case <-begun:
		case <-time.After(5 * time.Minute):
			t.Fatal("not all streams have begun")
		}
	}
	t.Logf("%d streams, after %v, with %d MiB", windows, time.Since(start), peak(t, n)>>20)
	for i := range orders {
		ref := fmt.Sprintf("%s/m/x:order%d", host(i), i) // shown before it is complete
		waitFor(t, "the pull of "+ref, func() error { return n.Pull("ballast", ref).Err })
	}
	for range orders {
		select {
		case <-followed:
		case <-time.After(5 * time.Minute):
			t.Fatal("not all orders are followed")
		}
	}
	if got := strings.Count(ballast(t, n, "status"), "in recorded order"); got != orders {
		t.Errorf("%d downloads have an order, want %d", got, orders)
	}
	t.Logf("%d orders, after %v, with %d MiB", orders, time.Since(start), peak(t, n)>>20)
	for i := range manifests {
		ask(host(i), fmt.Sprint("manifest", i))
	}
	for i := range tables {
		ask(host(i), fmt.Sprint("table", i))
	}
	for i := range claims {
		ref := fmt.Sprintf("%s/m/x:claim%d", host(i), i)
		out := n.Ballast("prefetch", ref)
		limited := strings.Contains(out.Output(), "limit conversion_memory") || strings.Contains(out.Output(), "limit idle_documents")
		if !limited && !strings.Contains(out.Output(), "needs 110 TB more") {
			t.Errorf("%s: %v\n%s", ref, out.Err, out.Output())
		}
	}
	waitFor(t, "another's pull", func() error { return n.Pull("ballast", good).Err }) // ctr waits only 30 s for an answer
	t.Logf("another's pull took %v", time.Since(start))
	wg.Wait()
	t.Logf("conversions, after %v, with %d MiB", time.Since(start), peak(t, n)>>20)
	release()
	unpacked.Wait()
	t.Logf("all took %v, with %d MiB at most", time.Since(start), peak(t, n)>>20)
	if got := peak(t, n); got > 600<<20 {
		t.Errorf("the daemon had %d MiB, want less than 600", got>>20)
	}
}
