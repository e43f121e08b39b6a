package daemon

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/ahead"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/care"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// labelReadAhead is the label of pods and containers that replaces snapshot.read_ahead for their models. Its
// values are those of the setting.
const labelReadAhead = "ballast.dev/read-ahead"

// buildAhead builds what reads models ahead that are mounted, unless the configuration forbids it.
func (d *Daemon) buildAhead() error {
	if d.config.Snapshot.ReadAhead == config.ReadAheadOff {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.ahead = ahead.New(ahead.Options{Command: []string{self, "read-ahead"}, Log: d.log})
	return nil
}

// mounted reads a model ahead whose complete files are mounted as part of the snapshot name.
func (d *Daemon) mounted(name string, table digest.Digest, view string) {
	if d.ahead == nil {
		return
	}
	d.ahead.Mounted(table.String(),
		func(ctx context.Context) ahead.Mode { return d.aheadMode(ctx, name) },
		func(ctx context.Context) ([]*os.File, error) { return d.largeFiles(table, view) })
}

// aheadMode returns whether the user of a snapshot wants its files to be read ahead. The node decides for users
// that do not say it, and while containerd does not answer.
func (d *Daemon) aheadMode(ctx context.Context, name string) ahead.Mode {
	ns, _, _ := strings.Cut(name, "/")
	value, err := d.userLabel(namespaces.WithNamespace(ctx, ns), care.KeyOf(name, ns))
	if err != nil && !errdefs.IsNotFound(err) {
		d.log.Debug("the label of a user of a model is not known", "snapshot", name, "label", labelReadAhead, "err", err)
	}
	modes := map[string]ahead.Mode{config.ReadAheadAuto: ahead.Auto, config.ReadAheadOn: ahead.On, config.ReadAheadOff: ahead.Off}
	if mode, ok := modes[value]; ok {
		return mode
	}
	if value != "" {
		d.log.Warn("a label has none of the values auto, on, off", "label", labelReadAhead, "value", value, "snapshot", name)
	}
	return modes[d.config.Snapshot.ReadAhead]
}

// userLabel returns labelReadAhead of the pod or, if it has none, of the container that uses the snapshot with
// a key of containerd. It is empty if neither has it. The error is errdefs.ErrNotFound if no container uses the
// snapshot.
func (d *Daemon) userLabel(ctx context.Context, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, ctrd.AskTimeout)
	defer cancel()
	id := key
	if pod, ok := care.PodOfVolume(key); ok {
		id = pod
	}
	got, err := d.containerd.Container(ctx, id)
	if errdefs.IsNotFound(err) {
		// Clients prepare the snapshot of a container before they create the container.
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		got, err = d.containerd.Container(ctx, id)
	}
	if err != nil {
		return "", err
	}
	labels := got.Labels
	if uid := labels["io.kubernetes.pod.uid"]; uid != "" {
		filter := `labels."io.cri-containerd.kind"==sandbox,labels."io.kubernetes.pod.uid"==` + strconv.Quote(uid)
		pods, err := d.containerd.Containers(ctx, filter)
		if err != nil {
			return "", err
		}
		for _, pod := range pods {
			if value := pod.Labels[labelReadAhead]; value != "" {
				return value, nil
			}
		}
	}
	return labels[labelReadAhead], nil
}

// largeFiles opens the large files of a complete model, in the order of their paths.
func (d *Daemon) largeFiles(table digest.Digest, view string) (open []*os.File, err error) {
	files, err := d.store.Views.Files(table)
	if err != nil {
		return nil, err
	}
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Size < ahead.MinSize || seen[f.Digest] {
			continue
		}
		seen[f.Digest] = true
		file, err := d.store.Views.View(view).OpenObject(f.Digest)
		if err != nil {
			for _, f := range open {
				err = errors.Join(err, f.Close())
			}
			return nil, err
		}
		open = append(open, file)
	}
	return open, nil
}
