package carton_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
)

type file = converttest.CartonFile

// replace returns a function that replaces old, which must be present.
func replace(old, new string) func([]byte) []byte {
	return func(p []byte) []byte {
		if !bytes.Contains(p, []byte(old)) {
			panic("missing: " + old)
		}
		return bytes.Replace(p, []byte(old), []byte(new), 1)
	}
}

func info(old, new string) converttest.Carton {
	return converttest.GoodCarton([]byte("weights")).With(file{Path: "carton.toml", Data: replace(old, new)([]byte(converttest.CartonInfo))})
}

func manifest(f func([]byte) []byte) converttest.Carton {
	c := converttest.GoodCarton([]byte("weights"))
	c.Manifest = f
	return c
}

func links(f func([]byte) []byte) converttest.Carton {
	c := converttest.GoodCarton([]byte("weights")).With(file{Path: "model/weights.bin", Data: []byte("weights"), URLs: []string{"https://example.com/a"}})
	c.Links = f
	return c
}

func with(files ...file) converttest.Carton {
	return converttest.GoodCarton([]byte("weights")).With(files...)
}

func appended(s string) func([]byte) []byte {
	return func(p []byte) []byte { return append(bytes.Clone(p), s...) }
}

// hash is the digest of no bytes.
const hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

type hostileCase struct {
	carton converttest.Carton
	want   string // a part of the error
}

func hostileManifests() map[string]hostileCase {
	return map[string]hostileCase{
		"line without =":          {manifest(appended("nothing\n")), "path=sha256"},
		"blank line":              {manifest(appended("\n")), "path=sha256"},
		"blank line first":        {manifest(func(p []byte) []byte { return append([]byte("\n"), p...) }), "line 1"},
		"empty":                   {manifest(func([]byte) []byte { return nil }), "path=sha256"},
		"no hash":                 {manifest(appended("model/empty2=\n")), "not a sha256"},
		"short hash":              {manifest(appended("model/empty2=" + hash[1:] + "\n")), "not a sha256"},
		"long hash":               {manifest(appended("model/empty2=" + hash + "0\n")), "not a sha256"},
		"hash that is not hex":    {manifest(appended("model/empty2=" + strings.Repeat("z", 64) + "\n")), "line"},
		"hash with a space":       {manifest(appended("model/empty2= " + hash[1:] + "\n")), "line"},
		"path twice":              {manifest(appended("model/empty=" + hash + "\n")), "duplicate"},
		"entry for itself":        {manifest(appended("MANIFEST=" + hash + "\n")), "must not be listed"},
		"entry for LINKS":         {manifest(appended("LINKS=" + hash + "\n")), "must not be listed"},
		"path with a parent":      {manifest(appended("../x=" + hash + "\n")), "leaves"},
		"absolute path":           {manifest(appended("/x=" + hash + "\n")), "absolute"},
		"path that is not clean":  {manifest(appended("model/../x=" + hash + "\n")), "not clean"},
		"empty path":              {manifest(appended("=" + hash + "\n")), "empty"},
		"no carton.toml":          {manifest(func(p []byte) []byte { _, rest, _ := bytes.Cut(p, []byte("\n")); return rest }), "does not list carton.toml"},
		"byte order mark":         {manifest(func(p []byte) []byte { return append([]byte("\ufeff"), p...) }), "does not list carton.toml"},
		"file without content":    {manifest(appended("zzz=" + strings.Repeat("0", 64) + "\n")), "neither in the archive"},
		"unsorted":                {manifest(func(p []byte) []byte { i := bytes.IndexByte(p, '\n') + 1; return append(bytes.Clone(p[i:]), p[:i]...) }), "alphabetical order"},
		"no folder of the model":  {converttest.Carton{Files: []file{{Path: "carton.toml", Data: []byte(noop)}, {Path: "misc/x", Data: []byte("x")}}}, "no folder model/"},
		"file and directory":      {manifest(appended("model=" + hash + "\n")), "model"},
		"a million lines":         {manifest(appended(strings.Repeat("=\n", 1_000_000))), "MANIFEST"},
		"larger than the limit":   {manifest(appended(strings.Repeat("x", carton.MaxManifestSize))), "more than"},
		"no MANIFEST":             {zipped(func(z *converttest.Zip) { z.Entries = z.Entries[:3] }), "no file MANIFEST"},
		"MANIFEST is a link":      {zipped(func(z *converttest.Zip) { last(z).Mode = 0o120777 }), "no file MANIFEST"},
		"MANIFEST is a directory": {zipped(func(z *converttest.Zip) { *last(z) = converttest.ZipEntry{Name: "MANIFEST/"} }), "no file MANIFEST"},
		"a file is a directory":   {zipped(func(z *converttest.Zip) { z.Entries[0] = converttest.ZipEntry{Name: "carton.toml/"} }), "directory"},
		"bytes after the zip":     {zipped(func(z *converttest.Zip) { z.After = []byte("x") }), "after the end"},
		"one digest, two sizes":   {zippedWith(with(file{Path: "model/twin", Data: []byte("weights")}), func(z *converttest.Zip) { z.Entries[len(z.Entries)-2].Data = []byte("weight") }), "one digest"},
		"link out of the carton":  {with(file{Path: "model/l", Data: []byte("x"), Link: "../../etc/passwd"}), "neither in the archive"},
		"absolute link":           {with(file{Path: "model/l", Data: []byte("x"), Link: "/etc/passwd"}), "neither in the archive"},
		"link outside of model/":  {with(file{Path: "misc/l", Data: []byte("ID3"), Link: "output.mp3"}), "outside of model/"},
		"link to itself":          {with(file{Path: "model/l", Data: []byte("x"), Link: "l"}), "neither in the archive"},
		"links in a loop":         {with(file{Path: "model/l", Data: []byte("x"), Link: "m"}, file{Path: "model/m", Data: []byte("x"), Link: "l"}), "neither in the archive"},
		"link to nothing":         {with(file{Path: "model/l", Data: []byte("x"), Link: "nothing"}), "neither in the archive"},
		"link to other content":   {with(file{Path: "model/l", Data: []byte("x"), Link: "weights.bin"}), "neither in the archive"},
		"link to the root":        {with(file{Path: "model/l", Data: []byte("x"), Link: "."}), "neither in the archive"},
		"long link":               {with(file{Path: "model/l", Data: []byte("x"), Link: strings.Repeat("x/", 4096)}), "neither in the archive"},
		"link to a directory": {zippedWith(with(file{Path: "model/l", Data: []byte("x"), Link: "code"}), func(z *converttest.Zip) {
			z.Entries = append(z.Entries, converttest.ZipEntry{Name: "model/code/"})
		}), "neither in the archive"},
	}
}

func zipped(f func(*converttest.Zip)) converttest.Carton {
	return zippedWith(converttest.GoodCarton([]byte("weights")), f)
}

func zippedWith(c converttest.Carton, f func(*converttest.Zip)) converttest.Carton {
	c.Zip = f
	return c
}

func last(z *converttest.Zip) *converttest.ZipEntry { return &z.Entries[len(z.Entries)-1] }

func hostileInfos() map[string]hostileCase {
	return map[string]hostileCase{
		"no TOML":                      {info("model_name =", "model_name"), "carton.toml"},
		"key twice":                    {info("model_name =", "spec_version = 1\nmodel_name ="), "carton.toml"},
		"no spec_version":              {info("spec_version = 1\n", ""), "spec_version: is missing"},
		"spec_version in another case": {info("spec_version", "Spec_Version"), "spec_version: is missing"},
		"spec_version is text":         {info("spec_version = 1", `spec_version = "1"`), "not an integer"},
		"spec_version is negative":     {info("spec_version = 1", "spec_version = -1"), "negative"},
		"spec_version above 2^63":      {info("spec_version = 1", "spec_version = 18446744073709551617"), "carton.toml"},
		"name is a number":             {info(`model_name = "a_model"`, "model_name = 1"), "model_name: is not a string"},
		"description is a list":        {info(`short_description = "It answers every question."`, "short_description = []"), "short_description"},
		"license is a table":           {info(`license = "Apache-2.0"`, "license = {}"), "license"},
		"bad triple":                   {info("aarch64-apple-darwin", "An invalid platform"), "target triple"},
		"triple of six parts":          {info("aarch64-apple-darwin", "aarch64-a-b-c-d-e"), "target triple"},
		"triple with a space":          {info("aarch64-apple-darwin", "aarch64-a b"), "target triple"},
		"platforms are a number":       {info(`required_platforms = ["x86_64-unknown-linux-gnu", "aarch64-apple-darwin"]`, "required_platforms = 1"), "required_platforms"},
		"platform is a number":         {info(`"aarch64-apple-darwin"`, "1"), "required_platforms"},
		"input is a table":             {info("[[input]]\nname = \"x\"", "[input]\nname = \"x\""), "carton.toml"},
		"input without dtype":          {info("dtype = \"float32\"\n", ""), "dtype: is missing"},
		"no runner":                    {info("[runner]\n", "[other]\n"), "carton.toml"},
		"runner is text":               {with(file{Path: "carton.toml", Data: []byte("spec_version = 1\nrunner = \"x\"\n")}), "runner: is not a table"},
		"no runner at all":             {with(file{Path: "carton.toml", Data: []byte("spec_version = 1\n")}), "runner: is missing"},
		"no runner_name":               {info("runner_name = \"torchscript\"\n", ""), "runner_name: is missing"},
		"empty runner_name":            {info(`runner_name = "torchscript"`, `runner_name = ""`), "runner_name"},
		"no framework version":         {info("required_framework_version = \"=1.12.1\"\n", ""), "required_framework_version: is missing"},
		"bad framework version":        {info("=1.12.1", "latest"), "version requirement"},
		"not UTF-8":                    {info("a_model", "\xff"), "carton.toml"},
		"larger than the limit":        {info("a_model", strings.Repeat("x", carton.MaxInfoSize)), "more than"},
		"deep arrays":                  {info("model_name =", "deep = "+strings.Repeat("[", 100_000)+"\nmodel_name ="), "carton.toml"},
		"key of many parts":            {info("model_name =", strings.Repeat("a.", 100_000)+"a = 1\nmodel_name ="), "parts"},
		"table of many parts":          {info("[runner]", "["+strings.Repeat("a.", 100_000)+"a]\n[runner]"), "parts"},
		"inline key of many parts":     {info("model_name =", "a = [{"+strings.Repeat("a.", 100_000)+"a = 1}]\nmodel_name ="), "parts"},
		"many keys":                    {info("model_name =", manyKeys("a%d = 1\n")+"model_name ="), "keys"},
		"many keys of many parts":      {info("model_name =", manyKeys("a%d."+strings.Repeat("a.", 5)+"a = 1\n")+"model_name ="), "keys"},
		"many tables":                  {info("[runner]", manyKeys("[a%d]\n")+"[runner]"), "keys"},
		"many inline keys":             {info("model_name =", "a = {"+manyKeys("a%d = 1,")+"b = 1}\nmodel_name ="), "keys"},
		"1 GB of nothing":              {zipped(func(z *converttest.Zip) { bomb(&z.Entries[0]) }), "more than"},
	}
}

// manyKeys returns 40,000 keys, with which the decoder of TOML takes a quarter of a minute.
func manyKeys(format string) string {
	var b strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// bomb sets the size of an entry to 1 GB, which is possible with zstd.
func bomb(e *converttest.ZipEntry) {
	e.Packed = make([]byte, 64<<10)
	e.Method = 93
	set := func(h *converttest.ZipHeader) { h.Size = 1 << 30 }
	e.Local, e.Central = set, set
}

func hostileLinks() map[string]hostileCase {
	return map[string]hostileCase{
		"no TOML":             {links(appended("=")), "LINKS"},
		"no version":          {links(replace("version = 1\n", "")), "version: is missing"},
		"negative version":    {links(replace("version = 1", "version = -1")), "negative"},
		"no urls":             {links(replace("[urls]", "[other]")), "urls: is missing"},
		"urls are a list":     {links(func([]byte) []byte { return []byte("version = 1\nurls = []\n") }), "urls: is not a table"},
		"key that is no hash": {links(appended("x = []\n")), "not a sha256"},
		"hash twice":          {links(appended(hash + " = []\n" + strings.ToUpper(hash) + " = []\n")), "duplicate"},
		"value is text":       {links(appended(hash + " = \"https://example.com\"\n")), "not an array"},
		"URL is a number":     {links(appended(hash + " = [1]\n")), "not a string"},
		"empty list":          {links(replace(`["https://example.com/a", ]`, "[]")), "neither in the archive nor in LINKS"},
		"another file": {links(func([]byte) []byte {
			return []byte("version = 1\n[urls]\n" + hash + " = [\"https://example.com/a\"]\n")
		}), "neither in the archive nor in LINKS"},
		"many keys":             {links(appended(manyKeys("a%d = []\n"))), "keys"},
		"a million URLs":        {links(appended(hash + " = [" + strings.Repeat(`"https://a",`, 1_000_000) + "]\n")), "more than"},
		"larger than the limit": {links(appended("#" + strings.Repeat("x", carton.MaxLinksSize))), "more than"},
	}
}

func TestHostileDocuments(t *testing.T) {
	for group, cases := range map[string]map[string]hostileCase{
		"MANIFEST": hostileManifests(), "carton.toml": hostileInfos(), "LINKS": hostileLinks(),
	} {
		for name, c := range cases {
			t.Run(group+"/"+name, func(t *testing.T) {
				o, err := carton.Open(context.Background(), at(c.carton.Bytes()), carton.Options{})
				if err == nil {
					_, err = o.Model(context.Background())
				}
				if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got error %.500v, want an invalid argument with %q", err, c.want)
				}
				if len(fmt.Sprint(err)) > 2000 {
					t.Errorf("error of %d bytes", len(fmt.Sprint(err)))
				}
			})
		}
	}
}

// TestNewerVersionsAreNotImplemented opens documents of version 2.
func TestNewerVersionsAreNotImplemented(t *testing.T) {
	for name, c := range map[string]converttest.Carton{
		"carton.toml": info("spec_version = 1", "spec_version = 2"),
		"LINKS":       links(replace("version = 1", "version = 2")),
	} {
		_, err := carton.Open(context.Background(), at(c.Bytes()), carton.Options{})
		if !errdefs.IsNotImplemented(err) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}

// noop is the shortest valid carton.toml.
const noop = "spec_version = 1\n[runner]\nrunner_name = \"noop\"\nrequired_framework_version = \"*\"\n"

// TestUnusualCartonsAreRead pulls cartons that writers do not produce, but that are unambiguous.
func TestUnusualCartonsAreRead(t *testing.T) {
	good := converttest.GoodCarton([]byte("weights"))
	for name, c := range map[string]converttest.Carton{
		"CRLF":                  manifest(func(p []byte) []byte { return bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")) }),
		"no newline at the end": manifest(func(p []byte) []byte { return bytes.TrimSuffix(p, []byte("\n")) }),
		"sorted by lines":       {Files: []file{{Path: "carton.toml", Data: []byte(noop)}, {Path: "model/a", Data: []byte("1")}, {Path: "model/a0", Data: []byte("2")}}},
		"sorted by paths": {Files: []file{{Path: "carton.toml", Data: []byte(noop)}, {Path: "model/a", Data: []byte("1")}, {Path: "model/a0", Data: []byte("2")}}, Manifest: func(p []byte) []byte {
			l := strings.SplitAfter(string(p), "\n")
			return []byte(l[0] + l[2] + l[1])
		}},
		"option is a list":        info("num_threads = 4", "num_threads = [4, [\"x\"]]"),
		"option is a time":        info("num_threads = 4", "num_threads = 1979-05-27"),
		"option is a table":       info("num_threads = 4", "num_threads = {a = 1}"),
		"triple of a new machine": info("aarch64-apple-darwin", "aarch65-acme-quantumos"),
		"hashes in upper case":    manifest(func(p []byte) []byte { return bytes.Replace(p, []byte(hash), []byte(strings.ToUpper(hash)), 1) }),
		"no runner_compat":        info("runner_compat_version = 2\n", ""),
		"long short_description":  info("It answers every question.", strings.Repeat("x", 200)),
		"minimal":                 {Files: []file{{Path: "carton.toml", Data: []byte(noop)}, {Path: "model/x", Data: nil}}},
		"reference to nothing":    info("@tensor_data/numbers", "@tensor_data/missing"),
		"index that is no TOML":   good.With(file{Path: "tensor_data/index.toml", Data: []byte("[[tensor]")}),
		"index without tensors":   good.With(file{Path: "carton.toml", Data: []byte("spec_version = 1\n[runner]\nrunner_name = \"noop\"\nrequired_framework_version = \"~1.2, <2\"\n")}, file{Path: "tensor_data/index.toml", Data: nil}),
		"link out of model/":      with(file{Path: "model/l", Data: []byte("ID3"), Link: "../misc/output.mp3"}),
		"absolute link to model/": with(file{Path: "model/l", Data: nil, Link: "/model/empty"}),
		"link to other content":   with(file{Path: "model/l", Data: []byte("ID3"), Link: "weights.bin"}),
		"LINKS that are not used": zippedLinks(good),
		"modes and setuid":        zipped(func(z *converttest.Zip) { z.Entries[0].Mode = 0o104777; z.Entries[1].Mode = 0o100000 }),
	} {
		t.Run(name, func(t *testing.T) { compare(t, c, pull(t, at(c.Bytes()), carton.Options{})) })
	}
}

// zippedLinks adds LINKS for files in the archive. The URLs are not used.
func zippedLinks(c converttest.Carton) converttest.Carton {
	c.Links = func([]byte) []byte {
		return []byte("version = 1\n[urls]\n" + hash + " = [\"file:///etc/passwd\", \"ftp://example.com\"]\n")
	}
	return c
}

func TestVersionRequirements(t *testing.T) {
	text := func(v string) []byte {
		return []byte("spec_version = 1\n[runner]\nrunner_name = \"noop\"\nrequired_framework_version = \"" + v + "\"\n")
	}
	for _, v := range []string{"1", "1.2", "1.2.3", "=1.2.3", ">=1.2, <2", "^1", "~ 1.2.3", "*", "1.*", "1.*.*", "1.2.x", "1.2.3-alpha.1+build.5", "> 1.0.0", " =1.0 ,<3 "} {
		if _, err := carton.ParseInfo(text(v)); err != nil {
			t.Errorf("%q: %v", v, err)
		}
	}
	for _, v := range []string{"", "v1", "01", "1.02", "1.2.3.4", "1..2", "*.1", "1.*.2", "==1", "1,", ",", "1 2", "a", "1.2-alpha", ">", "1.2.3-", strings.Repeat("1,", 40) + "1", strings.Repeat("9", 20)} {
		if _, err := carton.ParseInfo(text(v)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got error %v", v, err)
		}
	}
}
