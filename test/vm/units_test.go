//go:build vm

package vm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// startReader starts a container that sees a model at /model. The model is mounted for it by ctr.
func (m *machine) startReader(t *testing.T, id string, want model, busybox string) {
	t.Helper()
	at := "/run/model-" + id
	m.sh(t, fmt.Sprintf(`mkdir %[1]s
ctr images mount --snapshotter ballast %[2]s %[1]s >/dev/null
ctr run -d --snapshotter ballast --mount type=bind,src=%[1]s,dst=/model,options=rbind:ro %[3]s %[4]s`, at, want.ref, busybox, id))
	m.reads(t, id, want)
}

// reads checks that a running container reads its model.
func (m *machine) reads(t *testing.T, id string, want model) {
	t.Helper()
	m.sh(t, fmt.Sprintf(`ctr tasks exec --exec-id read$RANDOM$RANDOM %s sh -c 'sha256sum /model/model.gguf | { read sum name; test "$sum" = %s; }'`, id, want.sum))
}

func (m *machine) stopReader(t *testing.T, id string) {
	t.Helper()
	m.sh(t, fmt.Sprintf("ctr tasks rm -f %[1]s\nctr containers rm %[1]s\nctr images unmount --snapshotter ballast --rm /run/model-%[1]s >/dev/null", id))
}

// units ends the service in every way while a container reads a model: the container reads on, and the service comes
// back.
func (m *machine) units(t *testing.T, want model) {
	t.Helper()
	comesBack := func(command string) func(t *testing.T) {
		return func(t *testing.T) {
			pid := m.mainPID(t)
			m.sh(t, strings.ReplaceAll(command, "PID", pid))
			m.replaced(t, pid)
			m.reads(t, "reader", want)
			m.healthy(t)
		}
	}
	m.journey(t, "kill -9 of the daemon", comesBack("kill -9 PID"))
	m.journey(t, "systemctl kill -s KILL", comesBack("systemctl kill -s KILL ballastd"))
	m.journey(t, "systemctl restart", comesBack("systemctl restart ballastd"))
	m.journey(t, "SIGHUP", func(t *testing.T) {
		pid := m.mainPID(t)
		m.sh(t, "kill -HUP "+pid)
		m.healthy(t)
		if now := m.mainPID(t); now != pid {
			t.Errorf("SIGHUP ended the daemon: process %s, now %s", pid, now)
		}
	})
	m.journey(t, "a daemon that hangs", func(t *testing.T) {
		if m.sh(t, "systemctl show -P WatchdogUSec ballastd") == "0\n" {
			t.Fatal("the service has no watchdog")
		}
		// The same with a shorter time, so that the test need not wait as long.
		m.sh(t, "mkdir /run/systemd/system/ballastd.service.d\nprintf '[Service]\\nWatchdogSec=30s\\n' >/run/systemd/system/ballastd.service.d/test.conf\nsystemctl daemon-reload\nsystemctl restart ballastd")
		comesBack("kill -STOP PID")(t)
		m.sh(t, "rm -r /run/systemd/system/ballastd.service.d\nsystemctl daemon-reload\nsystemctl restart ballastd")
	})
	m.journey(t, "stop, and start by the socket", func(t *testing.T) {
		m.sh(t, "systemctl stop ballastd.service")
		m.reads(t, "reader", want)
		again := m.registries.pushOllama(t, "library/socket", "1b", weights(41, 4<<20))
		m.mustPull(t, again.ref)
		m.holds(t, again)
		m.healthy(t)
	})
	m.journey(t, "doctor --fix", func(t *testing.T) {
		m.sh(t, "systemctl stop ballastd.socket ballastd.service; systemctl disable ballastd.socket ballastd.service 2>/dev/null; rm /etc/containerd/certs.d/registry.ollama.ai/hosts.toml")
		if out := m.try("ballast doctor"); out.Err == nil {
			t.Errorf("doctor finds nothing:\n%s", out.Output())
		}
		m.sh(t, "ballast doctor --fix")
		m.healthy(t)
		if got := m.sh(t, "systemctl is-enabled ballastd.socket ballastd.service"); got != "enabled\nenabled\n" {
			t.Errorf("the units are %q", got)
		}
		m.reads(t, "reader", want)
	})
	m.journey(t, "restart of containerd", func(t *testing.T) {
		m.sh(t, "systemctl restart containerd")
		m.reads(t, "reader", want)
		m.healthy(t)
	})
}

// lazy reads a model before it is complete, while the service ends in every way.
func (m *machine) lazy(t *testing.T) {
	t.Helper()
	n := 0
	reader := func(t *testing.T, during func(t *testing.T)) {
		n++
		m.readsWhile(t, fmt.Sprintf("lazy/model%d", n), byte(50+n), during)
	}
	m.journey(t, "lazy read", func(t *testing.T) { reader(t, func(*testing.T) {}) })
	for _, kill := range []string{"kill -9 PID", "systemctl kill -s KILL ballastd", "systemctl restart ballastd"} {
		m.journey(t, "lazy read, "+strings.TrimSuffix(kill, " PID"), func(t *testing.T) {
			reader(t, func(t *testing.T) {
				pid := m.mainPID(t)
				m.sh(t, strings.ReplaceAll(kill, "PID", pid))
				m.replaced(t, pid)
			})
		})
	}
	m.journey(t, "stop with a lazy mount: df, find, start", func(t *testing.T) {
		reader(t, func(t *testing.T) {
			m.sh(t, "systemctl stop ballastd.socket ballastd.service")
			m.sh(t, `timeout 120 df >/dev/null
timeout 120 df /var/lib/ballast >/dev/null
timeout 120 find /var/lib/ballast -xdev >/dev/null
timeout 120 ls -lR /var/lib/ballast >/dev/null`)
			m.sh(t, "systemctl start ballastd.socket ballastd.service")
			m.answers(t)
		})
	})
}

// readsWhile starts to read a model of which little has been downloaded, calls during, and wants the read to end with
// the right bytes. If the machine is so busy that most of the model is there before, it tries another one with a
// slower link.
func (m *machine) readsWhile(t *testing.T, repository string, seed byte, during func(t *testing.T)) {
	t.Helper()
	for rate := int64(1 << 20); ; rate /= 4 {
		want := m.registries.pushConverted(t, fmt.Sprintf("%s-%d", repository, rate), weights(seed, 48<<20))
		if m.readWhile(t, want, rate, during) {
			break
		}
		if rate < 1<<12 {
			t.Fatal("models are complete before they are read")
		}
		seed += 100
	}
	m.healthy(t)
}

// readWhile is readsWhile with a model and a rate. It returns false, without a call of during, if most of the model
// is there. systemd runs the reader, as a host service.
func (m *machine) readWhile(t *testing.T, want model, rate int64, during func(t *testing.T)) bool {
	t.Helper()
	m.registries.forget()
	m.registries.link(rate)
	defer m.registries.link(0)
	m.mustPull(t, want.ref)
	at := m.mountPoint()
	m.sh(t, fmt.Sprintf(`mkdir -p %[1]s
rm -f /run/lazy-sum
ctr images mount --snapshotter ballast %[2]s %[1]s >/dev/null
systemctl reset-failed reader.service 2>/dev/null || true
systemd-run --quiet --unit reader.service sh -c 'sha256sum %[1]s/model.gguf >/run/lazy-sum'`, at, want.ref))
	defer func() {
		if out := m.try("ctr images unmount --snapshotter ballast --rm " + at); out.Err != nil {
			t.Errorf("unmount: %v\n%s", out.Err, out.Output())
		}
	}()
	eventually(t, "bytes for the reader", func() error {
		if n := m.registries.sent(); n < want.size/8 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	early := m.registries.sent() < want.size*3/4
	if early {
		during(t)
	}
	m.registries.link(0)
	eventually(t, "end of the reader", func() error {
		if s := strings.TrimSpace(m.sh(t, "systemctl show -P ActiveState reader.service")); s == "active" || s == "activating" {
			return errors.New(s)
		}
		return nil
	})
	out := m.try("cat /run/lazy-sum; journalctl -b -u reader.service -o cat --no-pager | tail -n 3")
	if !strings.HasPrefix(out.Stdout, want.sum) {
		t.Errorf("the reader says %q, want the digest %s", out.Output(), want.sum)
	}
	if out := m.try("sha256sum <" + at + "/model.gguf"); !strings.HasPrefix(out.Stdout, want.sum) {
		t.Errorf("the same mount afterwards: %v\n%s", out.Err, out.Output())
	}
	return early
}

// readAhead reads the first page of a model, of which the first two windows of 16 MiB are read ahead then. The
// process that does it has left the control group of the service, whose limit of memory is for the daemon.
func (m *machine) readAhead(t *testing.T, want model) {
	t.Helper()
	const conf = "/etc/ballast/conf.d/ahead.toml"
	at := m.mountPoint()
	m.sh(t, fmt.Sprintf(`mkdir -p $(dirname %[1]s)
printf 'version = 1\n[snapshot]\nread_ahead = "on"\n' >%[1]s
systemctl restart ballastd
sync
echo 3 >/proc/sys/vm/drop_caches
mkdir %[2]s
ctr images mount --snapshotter ballast %[3]s %[2]s >/dev/null`, conf, at, want.ref))
	file := "/var/lib/ballast/objects/sha256/" + want.sum[:2] + "/" + want.sum
	eventually(t, "pages that are read ahead", func() error {
		got := m.sh(t, fmt.Sprintf("head -c 4096 %s/model.gguf >/dev/null\nfincore -b -n -o RES %s", at, file))
		if number(t, got) < 16<<20 {
			return fmt.Errorf("%s bytes are in the page cache", strings.TrimSpace(got))
		}
		return nil
	})
	if got := m.sh(t, "cat /proc/$(pgrep -o -f 'ballastd read-ahead')/cgroup"); got != "0::/\n" {
		t.Errorf("the process that reads ahead is in the control group %q", got)
	}
	m.sh(t, fmt.Sprintf("ctr images unmount --snapshotter ballast --rm %[1]s >/dev/null\nrm %[2]s\nrmdir --ignore-fail-on-non-empty $(dirname %[2]s)\nsystemctl restart ballastd", at, conf))
	m.healthy(t)
}
