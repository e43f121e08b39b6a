package pullsecret

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/google/go-cmp/cmp"
)

const private = "registry.example/team/model"

func creds(user string) remote.Credentials {
	return remote.Credentials{Username: user, Secret: "s3cr3t-of-" + user}
}

// users returns the user names of a name's secrets.
func (s *Secrets) users(name string) (l []string) {
	for _, c := range s.Of(name) {
		l = append(l, c.Username)
	}
	return l
}

func always(string) bool { return true }
func never(string) bool  { return false }

func open(t *testing.T, dir string) (*Secrets, *strings.Builder) {
	t.Helper()
	var log strings.Builder
	s, err := Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, &log
}

func need(t *testing.T, s *Secrets, sealed func(string) bool, held ...string) {
	t.Helper()
	if err := s.Need(held, sealed); err != nil {
		t.Fatal(err)
	}
}

// TestEvictionBySite adds credentials for very many repositories of one site. Secrets of other sites stay,
// whether a snapshot needs them or the pull has just started.
func TestEvictionBySite(t *testing.T) {
	var s Secrets
	s.Keep(private, creds("alice"))
	s.Keep("10.0.0.1:5000/team/model", creds("bob"))
	need(t, &s, never, private)
	for i := range maxNames/2 + 100 {
		s.Keep(fmt.Sprintf("r%d.evil.example:%d/r%d", i%50, 1000+i, i), creds("eve"))
		s.Keep(fmt.Sprintf("10.0.0.2:%d/r", i), creds("eve"))
	}
	for i := range maxNames + 100 { // each with a host of its own
		s.Keep(fmt.Sprintf("h%d.evil.example/r", i), creds("eve"))
	}
	if got := s.users(private); len(got) != 1 {
		t.Errorf("held: secrets of %v, want alice", got)
	}
	if got := s.users("10.0.0.1:5000/team/model"); len(got) != 1 {
		t.Errorf("of a pull that has begun: secrets of %v, want bob", got)
	}
	if n := len(s.names); n > maxNames+1 {
		t.Errorf("%d names, want at most %d and those that are held", n, maxNames)
	}
	long := strings.Repeat("x", maxSecret-10)
	for i := range 2 * maxTotal / maxSecret {
		s.Keep(fmt.Sprintf("evil.example/long%d", i), remote.Credentials{Username: "eve", Secret: long})
	}
	total := 0
	for _, e := range s.names {
		total += e.size()
	}
	if total > maxTotal+maxSecret || len(s.users(private)) != 1 {
		t.Errorf("%d bytes of secrets, want at most %d", total, maxTotal)
	}
	s.Keep("evil.example/longer", remote.Credentials{Secret: long + long})
	if got := s.users("evil.example/longer"); got != nil {
		t.Error("a secret that is longer than any is kept")
	}
}

// TestForgotten drops unused secrets after an hour, and those of readable repositories at once, but no held ones.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Secrets
		s.Keep(private, creds("alice"))
		s.Keep("registry.example/other", creds("bob"))
		need(t, &s, never, private)
		s.Forget(private)
		time.Sleep(keepFor + time.Second)
		if got := s.users("registry.example/other"); got != nil {
			t.Errorf("after an hour: secrets of %v", got)
		}
		if got := s.users(private); len(got) != 1 {
			t.Errorf("held: secrets of %v, want alice", got)
		}
		need(t, &s, never)
		if got := s.users(private); len(got) != 1 {
			t.Errorf("held until now: secrets of %v, want alice for another hour", got)
		}
		s.Forget(private)
		if got := s.users(private); got != nil {
			t.Errorf("forgotten: secrets of %v", got)
		}
	})
}

// TestGivenAfterExpiry gives a secret for a name whose secret has expired: only the new one is kept, and sealed.
func TestGivenAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, _ := open(t, dir)
		s.Keep(private, creds("alice"))
		time.Sleep(keepFor + time.Second)
		s.Keep(private, creds("bob"))
		if d := cmp.Diff(s.users(private), []string{"bob"}); d != "" {
			t.Errorf("secrets (-got +want):\n%s", d)
		}
		need(t, s, always, private)
		again, _ := open(t, dir)
		need(t, again, always, private)
		if d := cmp.Diff(again.users(private), []string{"bob"}); d != "" {
			t.Errorf("sealed (-got +want):\n%s", d)
		}
	})
}

// Tenants share a repository: the last one is asked first, each has an ID of its own. Who has many tokens displaces his
// own.
func TestSeveralOfName(t *testing.T) {
	var s Secrets
	for _, u := range []string{"alice", "bob", "carol", "alice", "dave"} {
		s.Keep(private, creds(u))
	}
	if d := cmp.Diff(s.users(private), []string{"dave", "alice", "carol", "bob"}); d != "" {
		t.Errorf("secrets (-got +want):\n%s", d)
	}
	ids := map[int]bool{}
	for i := range 3 * maxOfName {
		s.Keep(private, remote.Credentials{Username: "mallory", Secret: fmt.Sprint(i)})
	}
	var last []string
	for _, c := range s.Of(private) {
		ids[c.ID] = true
		if c.Username == "mallory" {
			last = append(last, c.Secret)
		}
	}
	if d := cmp.Diff(s.users(private), []string{"mallory", "mallory", "mallory", "mallory", "dave", "alice", "carol", "bob"}); d != "" {
		t.Errorf("secrets (-got +want):\n%s", d)
	}
	if len(ids) != maxOfName || last[0] != "23" || last[3] != "20" {
		t.Errorf("IDs %v, the last are %q", ids, last)
	}
}

// files returns the modes of what is below dir, by name, and fails the test if something can be read there.
func files(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	all := map[string]fs.FileMode{}
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		p, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"s3cr3t", "alice", "registry.example"} {
			if bytes.Contains(p, []byte(s)) {
				t.Errorf("%s has %q", e.Name(), s)
			}
		}
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = info.Mode()
	}
	return all
}

// TestSealed reads needed secrets again after a restart, and removes them from disk when they are not needed.
func TestSealed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	s, _ := open(t, dir)
	s.Keep(private, creds("alice"))
	s.Keep(private, creds("bob"))
	s.Keep("registry.example/complete", creds("alice"))
	s.Keep("registry.example/given", creds("alice"))
	onlyPrivate := func(name string) bool { return name == private }
	need(t, s, onlyPrivate, private, "registry.example/complete", "registry.example/public")
	want := map[string]fs.FileMode{keyFile: 0o600, fileOf(private): 0o600}
	if d := cmp.Diff(files(t, dir), want); d != "" {
		t.Errorf("files (-got +want):\n%s", d)
	}

	again, _ := open(t, dir)
	need(t, again, onlyPrivate, private, "registry.example/complete")
	if d := cmp.Diff(again.users(private), []string{"bob", "alice"}); d != "" {
		t.Errorf("after a restart (-got +want):\n%s", d)
	}
	if again.Of(private)[0].Credentials != creds("bob") {
		t.Error("the secret is another one")
	}
	if got := append(again.users("registry.example/complete"), again.users("registry.example/given")...); got != nil {
		t.Errorf("secrets that are not for the disk, of %v", got)
	}
	again.Keep(private, creds("carol"))
	third, _ := open(t, dir)
	need(t, third, onlyPrivate, private)
	if d := cmp.Diff(third.users(private), []string{"carol", "bob", "alice"}); d != "" {
		t.Errorf("after a new one and a crash (-got +want):\n%s", d)
	}
	need(t, again, never, private)
	if d := cmp.Diff(files(t, dir), map[string]fs.FileMode{keyFile: 0o600}); d != "" {
		t.Errorf("files when nobody needs them (-got +want):\n%s", d)
	}
	if got := again.users(private); len(got) != 3 {
		t.Errorf("in memory: secrets of %v", got)
	}
}

// A secret that is given for a name which is needed already, because those before were lost, is as good as
// one that was there first.
func TestGivenLater(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	need(t, s, always, private)
	s.Keep(private, creds("alice"))
	s.Keep("registry.example/other", creds("bob"))
	s.Forget(private)
	if got := s.users(private); len(got) != 1 {
		t.Errorf("secrets of %v, want alice", got)
	}
	want := map[string]fs.FileMode{keyFile: 0o600, fileOf(private): 0o600}
	if d := cmp.Diff(files(t, dir), want); d != "" {
		t.Errorf("files (-got +want):\n%s", d)
	}
}

// A file that is not the one that was sealed for the name is removed, and nothing of it is believed.
func TestSealedWrong(t *testing.T) {
	const other = "registry.example/other"
	for name, spoil := range map[string]func(t *testing.T, dir string) error{
		"renamed": func(t *testing.T, dir string) error {
			return os.Rename(filepath.Join(dir, fileOf(other)), filepath.Join(dir, fileOf(private)))
		},
		"changed": func(t *testing.T, dir string) error {
			p, err := os.ReadFile(filepath.Join(dir, fileOf(private)))
			if err != nil {
				return err
			}
			p[len(p)/2] ^= 1
			return os.WriteFile(filepath.Join(dir, fileOf(private)), p, 0o600)
		},
		"cut": func(t *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, fileOf(private)), 5) },
		"other key": func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, keyFile), make([]byte, keySize), 0o644)
		},
		"no key":     func(t *testing.T, dir string) error { return os.Remove(filepath.Join(dir, keyFile)) },
		"key is cut": func(t *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, keyFile), 3) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, _ := open(t, dir)
			s.Keep(private, creds("alice"))
			s.Keep(other, creds("eve"))
			need(t, s, always, private, other)
			if err := spoil(t, dir); err != nil {
				t.Fatal(err)
			}
			again, log := open(t, dir)
			need(t, again, always, private)
			if got := again.users(private); got != nil {
				t.Errorf("secrets of %v", got)
			}
			if !strings.Contains(log.String(), "pulled again") || strings.Contains(log.String(), "s3cr3t") {
				t.Errorf("log: %s", log)
			}
			if d := cmp.Diff(files(t, dir), map[string]fs.FileMode{keyFile: 0o600}); d != "" {
				t.Errorf("files (-got +want):\n%s", d)
			}
			again.Keep(private, creds("bob"))
			need(t, again, always, private)
			third, _ := open(t, dir)
			need(t, third, always, private)
			if got := third.users(private); len(got) != 1 {
				t.Errorf("sealed anew: secrets of %v", got)
			}
		})
	}
}

// TestKeyFile: the key of others' making is for root alone from then on.
func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, keyFile)
	if err := os.WriteFile(key, make([]byte, keySize), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	info, err := os.Stat(key)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
