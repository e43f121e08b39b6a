package convert_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// Other readers of archives: that of containerd, for the layers of an image, and GNU tar.
type readers uint8

const (
	containerd readers = 1 << iota
	gnu
)

// An oddTar is an archive that few writers make, or none that is right.
type oddTar struct {
	tar   []byte
	same  readers // that read the same files from it
	error string  // of ballast, if it refuses the archive; same is then who refuses it too
}

const bothReaders = containerd | gnu

// member is a header with its content. Its fields are written as they are.
type member struct {
	name, link, prefix string
	typ                byte // 0: that of a regular file before POSIX
	mode, uid, mtime   string
	size               string // otherwise that of data
	magic              string // otherwise that of POSIX
	data               string
}

// header returns a member in blocks, with its checksum.
// https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html
func (m member) blocks() []byte {
	p := make([]byte, 512, 1024+len(m.data))
	set := func(at, n int, text, otherwise string) {
		if text == "" {
			text = otherwise
		}
		if copy(p[at:at+n], text) < len(text) {
			panic("it does not fit: " + text)
		}
	}
	set(0, 100, m.name, "")
	set(100, 8, m.mode, "0000644\x00")
	set(108, 8, m.uid, "0000000\x00")
	set(116, 8, m.uid, "0000000\x00")
	set(124, 12, m.size, fmt.Sprintf("%011o\x00", len(m.data)))
	set(136, 12, m.mtime, "14000000000\x00")
	p[156] = m.typ
	set(157, 100, m.link, "")
	set(257, 8, m.magic, "ustar\x0000")
	set(345, 155, m.prefix, "")
	p = patch(p, 0, "")
	p = append(p, m.data...)
	return append(p, make([]byte, -len(p)&511)...)
}

const (
	magicV7  = "\x00"
	magicGNU = "ustar  \x00"
)

// unended returns an archive without an end.
func unended(members ...member) (p []byte) {
	for _, m := range members {
		p = append(p, m.blocks()...)
	}
	return p
}

// ended returns an archive.
func ended(members ...member) []byte { return append(unended(members...), make([]byte, 1024)...) }

// record is one of a header of PAX: its length, which includes its digits, a key and a value.
func record(key, value string) string {
	n := len(key) + len(value) + 3
	for len(fmt.Sprint(n))+len(key)+len(value)+3 != n {
		n++
	}
	return fmt.Sprintf("%d %s=%s\n", n, key, value)
}

// pax returns a header of PAX for the next member, or a global one (typ g), with pairs of keys and values.
func pax(typ byte, pairs ...string) member {
	m := member{name: "PaxHeaders/x", typ: typ}
	for i := 0; i < len(pairs); i += 2 {
		m.data += record(pairs[i], pairs[i+1])
	}
	return m
}

// long is a header of GNU with the name (typ L) or the target (K) of the next member.
func long(typ byte, text string) member {
	return member{name: "././@LongLink", typ: typ, magic: magicGNU, data: text + "\x00"}
}

// oddTars are archives that are read, or refused by name.
func oddTars() map[string]oddTar {
	reg := func(name, data string) member { return member{name: name, typ: '0', data: data} }
	dir := func(name, mode string) member { return member{name: name, typ: '5', mode: mode} }
	link := func(name, target string) member { return member{name: name, typ: '1', link: target} }
	sym := func(name, target string) member { return member{name: name, typ: '2', link: target} }
	with := func(m member, change func(*member)) member { change(&m); return m }
	a := reg("a", "weights")
	deep := strings.Repeat("d/", 64) + "f"
	name255 := strings.Repeat("n", 255)
	long200 := strings.Repeat("long/", 40) + "f"
	same := func(members ...member) oddTar { return oddTar{ended(members...), bothReaders, ""} }
	as := func(r readers, members ...member) oddTar { return oddTar{ended(members...), r, ""} }
	refused := func(also readers, err string, members ...member) oddTar { return oddTar{ended(members...), also, err} }
	odd := map[string]oddTar{
		// Headers.
		"V7":                             same(with(a, func(m *member) { m.magic, m.typ = magicV7, 0 })),
		"V7, a directory by its slash":   same(member{name: "d/", magic: magicV7, mode: "0000700\x00"}, member{name: "d/a", magic: magicV7, data: "x"}),
		"a file with a slash":            as(containerd, reg("d/", "")),
		"a prefix":                       same(member{name: "f", prefix: strings.Repeat("p", 100) + "/q", typ: '0', data: "x"}),
		"a prefix with the magic of GNU": as(bothReaders, member{name: "f", prefix: "\x00p", magic: magicGNU, typ: '0', data: "x"}),
		"numbers with spaces":            same(with(a, func(m *member) { m.size, m.mode, m.mtime = "          7 ", "   644 \x00", " 4000000000 " })),
		"a number without an end":        same(with(a, func(m *member) { m.size = "000000000007" })),
		"no numbers":                     same(member{name: "e", typ: '0', size: "\x00", mode: "0000600\x00", uid: "\x00"}),
		"numbers in base 256": same(with(a, func(m *member) {
			m.magic, m.size, m.mtime, m.uid = magicGNU, "\x80"+strings.Repeat("\x00", 10)+"\x07", "\x80\x00\x00\x00\x00\x00\x00\x00\x5f\x00\x00\x00", "\x80\x00\x00\x00\x7f\xff\xff\xff"
		})),
		"a time before 1970":           same(with(a, func(m *member) { m.magic, m.mtime = magicGNU, strings.Repeat("\xff", 11)+"\x00" })),
		"a checksum of signed numbers": {signed(ended(reg("a\xc3\xa9", "x"))), bothReaders, ""},
		"a user and a group":           same(with(dir("d/", "0000750\x00"), func(m *member) { m.uid = "0001750\x00" }), with(reg("d/a", "x"), func(m *member) { m.uid = "0001750\x00" }), with(sym("l", "d/a"), func(m *member) { m.uid = "0001751\x00" })),
		"setuid, setgid and sticky":    as(0, with(a, func(m *member) { m.mode = "0007755\x00" })),

		// Names.
		"a directory for the root":        same(dir("./", ""), reg("./a", "x"), dir("./d/", "0000700\x00"), reg("./d//b", "y")),
		"a name with ..":                  as(containerd, reg("d/../a", "x")),
		"a name that leaves":              refused(gnu, "leaves the model", reg("../a", "x")),
		"an absolute name":                refused(0, "absolute", reg("/a", "x")),
		"a name that is not UTF-8":        refused(0, "not UTF-8", reg("caf\xe9", "x")),
		"a name with a control character": refused(0, "control character", reg("a\nb", "x")),
		"no name":                         refused(gnu, "empty", reg("", "x")),
		"a directory without a name":      same(dir("", ""), a),
		"a backslash":                     same(reg(`a\b`, "x")),
		"names of 255 bytes":              same(long('L', name255), reg("n", "x")),
		"names of 256 bytes":              refused(bothReaders, "name too long", long('L', name255+"n"), reg("n", "x")),
		"65 directories":                  refused(0, "too deep", long('L', "d/"+deep), reg("n", "x")),
		"64 components":                   same(long('L', deep[2:]), reg("n", "x")),
		"a long name of GNU":              same(long('L', long200), with(reg("n", "x"), func(m *member) { m.magic = magicGNU })),
		"several long names":              same(long('L', "first"), long('L', long200), reg("n", "x")),
		"a long name without NUL":         same(with(long('L', long200), func(m *member) { m.data = long200 }), reg("n", "x")),
		"a long link of GNU":              same(long('K', long200), sym("l", "n")),
		"a name and a link of GNU":        same(long('K', long200), long('L', long200+"2"), sym("l", "n")),
		"a link of 4,000 bytes":           same(pax('x', "linkpath", strings.Repeat("abcdefg/", 499)+"f"), sym("l", "n")),
		"a link of 5,000 bytes":           refused(bothReaders, "leaves the model", pax('x', "linkpath", strings.Repeat("abcdefg/", 625)), sym("l", "n")),

		// PAX.
		"path and size":                          same(pax('x', "path", long200, "size", "7", "mtime", "1600000000.75"), with(a, func(m *member) { m.name = "n" })),
		"the last of two headers":                as(bothReaders, pax('x', "path", "one"), pax('x', "path", "two"), a),
		"the last of two keys":                   same(pax('x', "path", "one", "path", "two"), a),
		"an empty path":                          as(containerd, pax('x', "path", ""), a),
		"keys that are not known":                same(pax('x', "VENDOR.key", "x", "comment", "x"), a),
		"attributes and ACLs are left out":       same(pax('x', "SCHILY.xattr.user.a", "x", "SCHILY.acl.access", "u::rw-"), a),
		"a negative time":                        same(pax('x', "mtime", "-5.5"), a),
		"a time that is no number":               refused(bothReaders, "invalid tar header", pax('x', "mtime", "x"), a),
		"a path with NUL":                        refused(containerd, "invalid tar header", pax('x', "path", "a\x00b"), a),
		"a record that is too long":              refused(bothReaders, "invalid tar header", member{name: "x", typ: 'x', data: "99 path=x\n"}, a),
		"a global header":                        same(pax('g', "comment", "0123456789abcdef"), a),
		"a global time is not that of files":     as(containerd, pax('g', "mtime", "1"), a),
		"a global header of several, at the end": same(pax('g', "comment", "x"), pax('g', "comment", "y"), a, pax('g', "comment", "z")),
		"a header of more than a MiB":            refused(containerd, "too long", pax('x', "comment", strings.Repeat("x", 1<<20)), a),
		"a header for nothing":                   as(bothReaders, a, pax('x', "path", "b")),

		// Links.
		"a chain of hard links":             same(a, link("b", "a"), link("c", "b"), link("d/e", "./c")),
		"a hard link with a size":           same(a, with(link("b", "a"), func(m *member) { m.size = "00000000007\x00" }), reg("c", "x")),
		"a hard link with another mode":     as(gnu, a, with(link("b", "a"), func(m *member) { m.mode, m.mtime = "0000777\x00", "1\x00" })),
		"a hard link to itself":             as(gnu, a, link("a", "a")),
		"a hard link to a later file":       refused(bothReaders, "earlier in the archive", link("b", "a"), a),
		"a hard link to nothing":            refused(bothReaders, "earlier in the archive", a, link("b", "c")),
		"a hard link to an absolute name":   refused(0, "absolute", a, link("b", "/a")),
		"a hard link to a directory":        refused(bothReaders, "not a regular file", dir("d/", ""), link("b", "d")),
		"a hard link to a symbolic link":    refused(0, "not a regular file", a, sym("l", "a"), link("b", "l")),
		"a hard link to a file of before":   same(a, link("b", "a"), a),
		"a symbolic link with a size":       same(with(sym("l", "a"), func(m *member) { m.size = "00000000007\x00" }), a),
		"symbolic links as they are":        same(a, sym("l", "./a"), sym("d/m", "..//a"), sym("n", "nothing/")),
		"a symbolic link that is not UTF-8": refused(0, "not UTF-8", sym("l", "caf\xe9")),
		"a symbolic link to nothing":        refused(bothReaders, "target", sym("l", "")),
		"a symbolic link out":               refused(0, "leaves the model", sym("d/l", "../../a")),
		"a file through a symbolic link":    refused(0, "below|both a file and a directory", dir("d/", ""), sym("l", "d"), reg("l/a", "x")),

		// One name twice.
		"the same file":                                same(a, a),
		"a file with another content":                  refused(0, "different content", a, reg("a", "other")),
		"a file with another content of the same size": refused(0, "different content", a, reg("a", "WEIGHTS")),
		"a file with another user":                     same(a, with(a, func(m *member) { m.uid = "0001750\x00" })),
		"a file with another mode":                     same(a, with(a, func(m *member) { m.mode, m.mtime = "0000600\x00", "13000000000\x00" })),
		"an empty file with another mode":              same(reg("e", ""), with(reg("e", ""), func(m *member) { m.mode = "0000600\x00" })),
		"a directory with another mode":                same(dir("d/", "0000755\x00"), reg("d/a", "x"), dir("d/", "0000700\x00")),
		"a directory in place of a file":               refused(0, "a reg and a dir|different content", a, dir("a/", "")),
		"a file in place of a directory":               refused(0, "a dir and a reg|different content", dir("a/", ""), a),
		"a symbolic link to another place":             refused(0, "different targets|different content", sym("l", "a"), sym("l", "b")),

		// Types.
		"a contiguous file":          refused(containerd, `type '7'`, with(a, func(m *member) { m.typ = '7' })),
		"a fifo":                     refused(0, `type '6'`, member{name: "f", typ: '6'}),
		"a character device":         refused(0, `type '3'`, member{name: "f", typ: '3'}),
		"a block device":             refused(0, `type '4'`, member{name: "f", typ: '4'}),
		"the name of a volume":       refused(containerd, `type 'V'`, member{name: "volume", typ: 'V', magic: magicGNU}, a),
		"the rest of another volume": refused(bothReaders, `type 'M'`, member{name: "a", typ: 'M', magic: magicGNU, data: "x"}),
		"the root of a dump":         refused(0, `type 'D'`, member{name: "./", typ: 'D', magic: magicGNU, data: "Ya\x00\x00"}, reg("./a", "x")),
		"a directory of a dump":      refused(containerd, `type 'D'`, member{name: "d/", typ: 'D', magic: magicGNU, data: "Ya\x00\x00"}, reg("d/a", "x")),
		"ACLs of Solaris":            refused(containerd, `type 'A'`, member{name: "a", typ: 'A', data: "user::rw-"}, a),
		"a header of Solaris":        refused(containerd, `type 'X'`, member{name: "a", typ: 'X', data: record("path", "b")}, a),
		"a type of a vendor":         refused(containerd, `type 'Z'`, with(a, func(m *member) { m.typ = 'Z' })),
		"a directory with a size":    same(with(dir("d/", ""), func(m *member) { m.size = "00000000007\x00" }), a),

		// Sparse files.
		"sparse, of GNU":                  refused(containerd, "sparse", member{name: "s", typ: 'S', magic: magicGNU}),
		"sparse, PAX 0.0":                 refused(0, "sparse", pax('x', "GNU.sparse.size", "3", "GNU.sparse.numblocks", "1", "GNU.sparse.offset", "2", "GNU.sparse.numbytes", "1"), reg("s", "x")),
		"sparse, PAX 0.1":                 refused(0, "sparse", pax('x', "GNU.sparse.size", "3", "GNU.sparse.numblocks", "1", "GNU.sparse.map", "2,1", "GNU.sparse.name", "s"), reg("n", "x")),
		"sparse, PAX 1.0":                 refused(0, "sparse", pax('x', "GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.name", "s", "GNU.sparse.realsize", "3"), reg("n", "1\n2\n1\n"+strings.Repeat("\x00", 506)+"x")),
		"a map of holes that is too long": refused(bothReaders, "too long", pax('x', "GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.name", "s", "GNU.sparse.realsize", "3"), reg("n", "9999999\n"+strings.Repeat("1\n1\n", 1<<19))),
	}
	for name, o := range endsOfTars(a) {
		odd[name] = o
	}
	return odd
}

// endsOfTars are archives with a file whose ends are odd.
func endsOfTars(a member) map[string]oddTar {
	b := member{name: "b", typ: '0', data: "more"}
	return map[string]oddTar{
		"no end":                        {unended(a, b), bothReaders, ""},
		"one block of zeros":            {append(unended(a), make([]byte, 512)...), bothReaders, ""},
		"a part of a block of zeros":    {append(unended(a), make([]byte, 100)...), containerd, "EOF"},
		"one block of zeros in between": {append(append(unended(a), make([]byte, 512)...), ended(b)...), containerd, "invalid tar header"},
		"blocks of 10 KiB":              {append(ended(a), make([]byte, 10240-len(ended(a)))...), bothReaders, ""},
		"another archive":               {append(ended(a), ended(b)...), bothReaders, ""},
		"no padding of the last file":   {unended(a)[:512+len(a.data)], containerd, ""},
		"cut in a file":                 {unended(a)[:515], bothReaders, "beyond the end|unexpected EOF"},
		"cut in a header":               {unended(a, b)[:1200], containerd, "unexpected EOF"},
		"only zeros":                    {make([]byte, 1024), bothReaders, ""},
		"nothing":                       {nil, gnu, "empty"},
		"text":                          {bytes.Repeat([]byte("no archive "), 100), bothReaders, "invalid tar header"},
	}
}

// signed replaces the checksum of the first header by the sum of signed characters.
func signed(p []byte) []byte {
	sum := 256
	for i, c := range p[:512] {
		if i < 148 || i >= 156 {
			sum += int(int8(c))
		}
	}
	copy(p[148:], fmt.Sprintf("%06o\x00 ", sum))
	return p
}

// TestTarsAsOthers reads odd archives with ballast, plain and compressed, and with others: files are the same, or the
// archive is refused with the reason. formats.md says for whom the differences are.
func TestTarsAsOthers(t *testing.T) {
	t.Parallel()
	for name, o := range oddTars() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var first map[string]string
			for suffix, codec := range map[string]filetable.Codec{"": filetable.CodecNone, "+gzip": filetable.CodecGzip} {
				blob := o.tar
				if codec != filetable.CodecNone {
					blob = converttest.Compress(blob, codec)
				}
				files, err := brought(t, "application/vnd.cncf.model.weight.v1.tar"+suffix, blob)
				checkRefusal(t, "tar"+suffix, err, o.error)
				got := texts(files)
				if d := cmp.Diff(first, got); first != nil && d != "" {
					t.Errorf("plain and compressed differ:\n%s", d)
				}
				first = got
			}
			compare(t, "containerd", first, o, containerd, func(dir string) error { return apply(dir, o.tar) })
			compare(t, "GNU tar", first, o, gnu, func(dir string) error { return extract(t, dir, o.tar) })
		})
	}
}

// checkRefusal compares an error with the text that it must have, one of several; empty: no error.
func checkRefusal(t *testing.T, what string, err error, want string) {
	t.Helper()
	ok := (err == nil) == (want == "")
	for text := range strings.SplitSeq(want, "|") {
		if err != nil && want != "" {
			ok = errdefs.IsInvalidArgument(err) && strings.Contains(err.Error(), text)
			if ok {
				break
			}
		}
	}
	if !ok {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

// compare compares files with those that another reader unpacks.
func compare(t *testing.T, who string, files map[string]string, o oddTar, r readers, unpack func(dir string) error) {
	t.Helper()
	dir := t.TempDir()
	err := unpack(dir)
	if o.error != "" {
		if (err != nil) != (o.same&r != 0) {
			t.Errorf("%s: %v", who, err)
		}
		return
	}
	want := onDisk(t, dir)
	maps.DeleteFunc(want, func(path, text string) bool { return files[path] == "" && strings.HasPrefix(text, "dir") }) // not in the archive
	if d := cmp.Diff(want, files); (err == nil && d == "") != (o.same&r != 0) {
		t.Errorf("%s: %v, -it +ballast:\n%s", who, err, d)
	}
}

// texts describes files.
func texts(files []filetable.File) map[string]string {
	all := map[string]string{}
	for _, f := range files {
		all[f.Path] = describe(f, f.Digest)
	}
	return all
}

func describe(f filetable.File, d digest.Digest) string {
	sec := max(0, f.ModTime.Unix()) // there are no times before 1970
	switch f.Type {
	case filetable.TypeSymlink:
		return fmt.Sprintf("symlink %d:%d %d %q", f.UID, f.GID, sec, f.Target)
	case filetable.TypeDir:
		return fmt.Sprintf("dir %o %d:%d %d", f.Mode, f.UID, f.GID, sec)
	}
	return fmt.Sprintf("%s %o %d:%d %d %s", f.Type, f.Mode, f.UID, f.GID, sec, d)
}

// onDisk describes the files in a directory.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		f, d := filetable.File{Type: filetable.TypeReg, Mode: uint32(info.Mode().Perm()), UID: st.Uid, GID: st.Gid, ModTime: info.ModTime()}, digest.Digest("")
		switch info.Mode().Type() {
		case fs.ModeDir:
			f.Type = filetable.TypeDir
		case fs.ModeSymlink:
			f.Type = filetable.TypeSymlink
			f.Target, err = os.Readlink(p)
		case 0:
			var b []byte
			b, err = os.ReadFile(p)
			d = digest.FromBytes(b)
		}
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			f.Mode |= 0o7000
		}
		rel, _ := filepath.Rel(dir, p)
		all[rel] = describe(f, d)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// apply unpacks a layer as containerd does: it reads all of it.
func apply(dir string, blob []byte) error {
	r, err := compression.DecompressStream(bytes.NewReader(blob))
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := archive.Apply(context.Background(), dir, r); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return err
}

// extract unpacks an archive with GNU tar.
func extract(t *testing.T, dir string, p []byte) error {
	t.Helper()
	cmd := exec.Command("tar", "--extract", "--preserve-permissions", "--same-owner", "--numeric-owner", "--directory", dir, "--file", "-")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = bytes.NewReader(p)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// gzipMember is a member of a gzip file.
// https://www.rfc-editor.org/rfc/rfc1952
func gzipMember(p []byte, h gzip.Header) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Header = h
	_, err := w.Write(p)
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// zstdFrame is a frame of zstd.
func zstdFrame(p []byte, o ...zstd.EOption) []byte {
	w, err := zstd.NewWriter(nil, o...)
	if err != nil {
		panic(err)
	}
	return w.EncodeAll(p, nil)
}

// join returns the bytes of all.
func join(all ...[]byte) []byte { return bytes.Join(all, nil) }

// streams are compressed archives, each with one file.
func streams() map[string]struct {
	suffix string
	blob   []byte
	same   readers
	error  string
} {
	type stream = struct {
		suffix string
		blob   []byte
		same   readers
		error  string
	}
	one := ended(member{name: "a", typ: '0', data: "weights"})
	gz := gzipMember(one, gzip.Header{})
	empty := gzipMember(nil, gzip.Header{})
	named := gzipMember(one, gzip.Header{Name: "model.tar", Comment: "a comment", Extra: []byte("ab\x02\x00xy"), ModTime: time.Unix(1<<30, 0), OS: 3})
	crc := append(bytes.Clone(named[:4]), named[4:]...)
	crc[3] |= 2
	end := bytes.Index(crc, []byte("a comment\x00")) + len("a comment\x00")
	sum := binary.LittleEndian.AppendUint16(nil, uint16(crc32.ChecksumIEEE(crc[:end])))
	change := func(p []byte, at int) []byte {
		p = bytes.Clone(p)
		p[(at+len(p))%len(p)] ^= 1
		return p
	}
	zs := zstdFrame(one)
	skip := []byte{0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'a', 'b', 'c'}
	var unsized bytes.Buffer
	w, err := zstd.NewWriter(&unsized, zstd.WithEncoderCRC(false), zstd.WithWindowSize(filetable.MaxWindow))
	for _, p := range [][]byte{one[:600], one[600:]} {
		_, werr := w.Write(p)
		err = errors.Join(err, werr, w.Flush())
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err)
	}
	// A frame with the ID of a dictionary, and a raw block.
	dictionary := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 1, 9, 0, 0}, 'x')
	return map[string]stream{
		"gzip: members that are cut anywhere":             {"+gzip", join(gzipMember(one[:100], gzip.Header{}), gzipMember(one[100:1000], gzip.Header{}), gzipMember(one[1000:], gzip.Header{})), containerd, ""},
		"gzip: empty members":                             {"+gzip", join(empty, gz, empty), containerd, ""},
		"gzip: all fields of a header":                    {"+gzip", named, containerd, ""},
		"gzip: the checksum of a header":                  {"+gzip", join(crc[:end], sum, crc[end:]), containerd, ""},
		"gzip: a wrong one":                               {"+gzip", join(crc[:end], []byte{^sum[0], sum[1]}, crc[end:]), containerd, "invalid header"},
		"gzip: zeros after it":                            {"+gzip", join(gz, make([]byte, 512)), containerd, "after the last gzip member"},
		"gzip: text after it":                             {"+gzip", join(gz, []byte("some text after it")), containerd, "after the last gzip member"},
		"gzip: cut":                                       {"+gzip", gz[:len(gz)-20], containerd, "unexpected EOF"},
		"gzip: cut in its checksum":                       {"+gzip", gz[:len(gz)-3], containerd, "unexpected EOF"},
		"gzip: wrong checksum":                            {"+gzip", change(gz, -8), containerd, "invalid checksum"},
		"gzip: wrong length":                              {"+gzip", change(gz, -1), containerd, "invalid checksum"},
		"gzip: another method":                            {"+gzip", change(gz, 2), containerd, "invalid header"},
		"gzip: nothing in it":                             {"+gzip", empty, 0, "an empty blob is not a tar"},
		"gzip: nothing":                                   {"+gzip", nil, 0, "EOF"},
		"zstd: frames that are cut anywhere":              {"+zstd", join(zstdFrame(one[:100]), zstdFrame(one[100:1000]), zstdFrame(one[1000:])), containerd, ""},
		"zstd: empty frames":                              {"+zstd", join(zstdFrame(nil, zstd.WithZeroFrames(true)), zs, zstdFrame(nil, zstd.WithZeroFrames(true))), containerd, ""},
		"zstd: frames that are skipped":                   {"+zstd", join(skip, zstdFrame(one[:600]), skip, zstdFrame(one[600:]), skip), containerd, ""},
		"zstd: no size, no checksum, a window of 128 MiB": {"+zstd", unsized.Bytes(), containerd, ""},
		"zstd: a wrong checksum":                          {"+zstd", change(zs, -1), containerd, "CRC check failed"},
		"zstd: cut":                                       {"+zstd", zs[:len(zs)-9], containerd, "unexpected EOF"},
		"zstd: cut between frames":                        {"+zstd", zstdFrame(one[:1000]), containerd, ""},
		"zstd: zeros after it":                            {"+zstd", join(zs, make([]byte, 512)), containerd, "magic number"},
		"zstd: a dictionary":                              {"+zstd", dictionary, containerd, "dictionary"},
		"zstd: nothing":                                   {"+zstd", nil, 0, "an empty blob"},
	}
}

// TestStreamsAsOthers reads odd compressed archives with ballast and with containerd.
func TestStreamsAsOthers(t *testing.T) {
	t.Setenv("CONTAINERD_DISABLE_PIGZ", "1") // an own program of the host, which ignores what follows the last member
	want := texts([]filetable.File{{Path: "a", Type: filetable.TypeReg, Mode: 0o644, ModTime: time.Unix(0o14000000000, 0), Digest: digest.FromString("weights")}})
	for name, tt := range streams() {
		files, err := brought(t, "application/vnd.cncf.model.weight.v1.tar"+tt.suffix, tt.blob)
		checkRefusal(t, name, err, tt.error)
		if got := texts(files); err == nil && !maps.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		dir := t.TempDir()
		err = apply(dir, tt.blob)
		if same := (err != nil) == (tt.error != "") && (err != nil || maps.Equal(onDisk(t, dir), want)); same != (tt.same&containerd != 0) {
			t.Errorf("%s: containerd: %v", name, err)
		}
	}
}

// TestGoTars reads the archives of the tests of Go, which come with it, as containerd does.
func TestGoTars(t *testing.T) {
	t.Parallel()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "src/archive/tar/testdata/*.tar"))
	if err != nil || len(all) < 30 {
		t.Fatalf("%d archives in the source of Go at %s: %v", len(all), root, err)
	}
	// Those that only ballast refuses.
	alone := map[string]string{
		"gnu-not-utf8": "not UTF-8", "hdr-only": "type '6'", "pax-nil-sparse-data": "sparse", "pax-nil-sparse-hole": "sparse",
	}
	for _, file := range all {
		name := strings.TrimSuffix(filepath.Base(file), ".tar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			files, err := brought(t, "application/vnd.cncf.model.weight.v1.tar", p)
			dir := t.TempDir()
			switch other := apply(dir, p); {
			case alone[name] != "":
				checkRefusal(t, "ballast", err, alone[name])
			case (err == nil) != (other == nil) || err != nil && !errdefs.IsInvalidArgument(err):
				t.Errorf("got %v, containerd: %v", err, other)
			case err == nil:
				compare(t, "containerd", texts(files), oddTar{same: containerd}, containerd, func(dir string) error { return apply(dir, p) })
			}
		})
	}
}
