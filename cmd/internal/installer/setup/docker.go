package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/errdefs"
)

// Docker Engine's unit and its file of settings.
// https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file
const (
	dockerService = "docker"
	dockerConfig  = "/etc/docker/daemon.json"
)

// Keys of dockerConfig.
const (
	dockerDriver   = "storage-driver"
	dockerFeatures = "features"
	dockerStore    = "containerd-snapshotter" // a feature
)

// readDocker returns the settings in the text of dockerConfig; there are none in an empty one.
func readDocker(text string) (map[string]any, error) {
	settings := map[string]any{}
	if strings.TrimSpace(text) == "" {
		return settings, nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err := d.Decode(&settings)
	var why string
	switch {
	case strings.HasPrefix(text, "\ufeff"):
		why = "it begins with a byte order mark: take it out"
	case err != nil:
		why = err.Error()
	case settings == nil:
		why = "it is null"
	default:
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return settings, nil
		}
		why = "more follows it"
	}
	return nil, fmt.Errorf("%s is no JSON object (%s): %w", dockerConfig, why, errdefs.ErrFailedPrecondition)
}

// writeDocker returns the text of settings.
func writeDocker(settings map[string]any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(settings)
	return b.String(), err
}

// withDocker returns a text of dockerConfig with our settings. One that has them stays as it is.
func withDocker(text string) (string, error) {
	settings, err := readDocker(text)
	if err != nil {
		return "", err
	}
	was, _ := settings[dockerFeatures].(map[string]any)
	if settings[dockerDriver] == snippet.Snapshotter && was[dockerStore] == true {
		return text, nil
	}
	features := map[string]any{dockerStore: true}
	for name, v := range was {
		if name != dockerStore {
			features[name] = v
		}
	}
	settings[dockerDriver], settings[dockerFeatures] = snippet.Snapshotter, features
	return writeDocker(settings)
}

// withoutDocker returns a text of dockerConfig with those settings in place of ours that it had before.
func withoutDocker(text, before string) (string, error) {
	settings, err := readDocker(text)
	if err != nil {
		return "", err
	}
	was, err := readDocker(before)
	if err != nil {
		return "", err
	}
	now := maps.Clone(settings)
	putDocker(now, was, dockerDriver, snippet.Snapshotter)
	had, _ := was[dockerFeatures].(map[string]any)
	if features, _ := settings[dockerFeatures].(map[string]any); features != nil {
		features = maps.Clone(features)
		putDocker(features, had, dockerStore, true)
		now[dockerFeatures] = features
		if _, there := was[dockerFeatures]; len(features) == 0 && !there {
			delete(now, dockerFeatures)
		}
	}
	if reflect.DeepEqual(now, settings) {
		return text, nil
	}
	return writeDocker(now)
}

// putDocker gives a key that has our value the one that it had before.
func putDocker(now, was map[string]any, key string, ours any) {
	switch v, ok := was[key]; {
	case now[key] != ours:
	case ok:
		now[key] = v
	default:
		delete(now, key)
	}
}

// dockerConflicts returns what in the settings of Docker ballast does not work with, and what of others it would
// replace.
func (b *builder) dockerConflicts(settings map[string]any) (never, replaced []string) {
	if v, _ := settings["userns-remap"].(string); v != "" {
		never = append(never, fmt.Sprintf("%s has userns-remap = %q, and Docker does not start with that and images in containerd: take it out", dockerConfig, v))
	}
	if v, _ := settings["containerd"].(string); v != "" && v != b.Distro.Socket {
		never = append(never, fmt.Sprintf("%s has containerd = %q, and ballast is set up for that of %s: take it out", dockerConfig, v, b.Distro.Socket))
	}
	switch v := settings[dockerDriver]; v {
	case nil, "", defaults.DefaultSnapshotter, snippet.Snapshotter:
	default:
		replaced = append(replaced, fmt.Sprintf("%s has storage-driver = %q; --force replaces it", dockerConfig, v))
	}
	if features, _ := settings[dockerFeatures].(map[string]any); features[dockerStore] == false {
		replaced = append(replaced, fmt.Sprintf("%s has features.%s = false, which keeps images out of containerd; --force replaces it", dockerConfig, dockerStore))
	}
	return never, replaced
}

// dockerRefuses returns why the running Docker cannot be given ballast.
func (b *builder) dockerRefuses(is *node.Docker) (never, replaced []string) {
	if is.TooOld() {
		never = append(never, fmt.Sprintf("Docker Engine %s is too old: ballast needs %d or later", is.Version, node.DockerMajor))
	}
	if a := is.Containerd.Address; a != "" && a != b.Distro.Socket {
		never = append(never, fmt.Sprintf("Docker uses the containerd at %s, and ballast is set up for that at %s: start that one before Docker", a, b.Distro.Socket))
	}
	if is.Running > 0 && is.Driver != snippet.Snapshotter && !b.o.NoRestart {
		replaced = append(replaced, fmt.Sprintf("%d containers run in Docker: its restart stops them, and it does not list them while its storage driver is another one. Stop and remove them first, or use --force", is.Running))
	}
	return never, replaced
}

// docker makes ballast the storage driver of Docker Engine, or undoes that. It comes last: Docker does not start with a
// storage driver that containerd does not have.
func (b *builder) docker() error {
	_, known := b.old[dockerConfig]
	if !b.o.Docker && !known && !b.pending(pendingDocker) {
		return nil
	}
	switch is := b.running.docker; {
	case b.o.Docker:
		if err := b.dockerSettings(); err != nil {
			return err
		}
	case known && b.running.dockerHangs() && !b.o.Force:
		return b.running.hung()
	case b.running.dockerHas() && is.Containers > 0 && !b.o.Force:
		return fmt.Errorf("%d containers of Docker use ballast, and it would not list them any more: docker rm them first, or use --force: %w", is.Containers, errdefs.ErrFailedPrecondition)
	}
	if err := b.stale(dockerGroup); err != nil {
		return err
	}
	if b.dirty[dockerGroup] || b.pending(pendingDocker) {
		b.restartDocker(b.o.Docker, "its storage driver has changed; its containers stop")
	}
	return nil
}

// restartDocker adds the restart after which Docker has ballast, or has it no more, unless that is so; or records that
// it is left to do, as it is where Docker does not run.
func (b *builder) restartDocker(wanted bool, why string) {
	switch {
	case b.running.docker != nil && b.running.dockerHas() == wanted:
		return
	case b.running.docker != nil && !b.o.NoRestart && b.Systemd:
		b.step(Restart, dockerService, why)
		return
	}
	b.plan.Pending = append(b.plan.Pending, pendingDocker)
	b.note("restart Docker: systemctl restart %s", dockerService)
}

// dockerSettings adds our settings to Docker's.
func (b *builder) dockerSettings() error {
	text, err := b.Text(dockerConfig)
	if err != nil {
		return err
	}
	settings, err := readDocker(text)
	if err != nil {
		return err
	}
	never, replaced := b.dockerConflicts(settings)
	_, known := b.old[dockerConfig]
	is := b.running.docker
	switch {
	case is != nil:
		n, r := b.dockerRefuses(is)
		never, replaced = append(never, n...), append(replaced, r...)
	case !known && !b.o.NoRestart:
		never = append(never, fmt.Sprintf("%v: start Docker first", b.running.why))
	}
	if !b.o.Force {
		never = append(never, replaced...)
	}
	switch {
	case len(never) == 0:
	case b.fixing:
		b.plan.Notes = append(b.plan.Notes, never...)
		if known {
			b.files[dockerConfig] = b.old[dockerConfig]
		}
		return nil
	default:
		return fmt.Errorf("this Docker cannot use ballast:\n  %s\nnothing was changed: %w", strings.Join(never, "\n  "), errdefs.ErrFailedPrecondition)
	}
	if b.o.Force {
		b.plan.Notes = append(b.plan.Notes, replaced...)
	}
	data, err := withDocker(text)
	if err != nil {
		return err
	}
	if data != text {
		b.dockerNotes(is)
	}
	return b.edit(dockerConfig, text, data, dockerGroup, "ballast is the storage driver of Docker, for all its images and containers", file{Docker: true})
}

// dockerNotes says what a change of the storage driver hides.
func (b *builder) dockerNotes(is *node.Docker) {
	switch {
	case is == nil:
		b.note("while ballast is the storage driver of Docker, it does not list containers of the former one, nor images of one that is not containerd's; they stay on the disk, and setup --remove brings them back")
		return
	case is.Driver == snippet.Snapshotter:
		return
	case is.Containers > 0:
		b.note("Docker does not list its %d containers of the storage driver %s while ballast is that; they stay on the disk, and setup --remove brings them back", is.Containers, is.Driver)
	}
	if !is.Images() {
		b.note("Docker does not list its images of the storage driver %s while ballast is that, and pulls them again; they stay on the disk, and setup --remove brings them back", is.Driver)
	}
}

// proveDocker restarts Docker, and returns an error unless its storage driver is then the wanted one.
func (p *Plan) proveDocker(ctx context.Context) error {
	if err := p.systemctl(ctx, "restart", dockerService); err != nil {
		return fmt.Errorf("dockerd does not start; see journalctl -u %s: %w", dockerService, err)
	}
	return until(ctx, readyTimeout, func(ctx context.Context) error {
		is, err := p.view.Docker(ctx)
		if err != nil {
			return err
		}
		if wanted := p.next.Options.Docker && !p.next.Removing; (is.Driver == snippet.Snapshotter) != wanted {
			return fmt.Errorf("the storage driver of Docker is %s; its command line, or another file than %s, may set it: %w", is.Driver, dockerConfig, errHopeless)
		}
		return nil
	})
}
