package containerdversion

// A File has the properties of a configuration file that matter for a drop-in that it imports. The
// zero value stands for no file.
type File struct {
	Format int // as in "version = 3"

	// OldTables reports whether the settings of CRI are in the table of formats 1 and 2. A file of
	// format 2 can have those of format 3 instead.
	OldTables bool
}

// The plugins of containerd with settings that ballast reads.
const (
	PluginDiff     = "io.containerd.service.v1.diff-service"
	PluginTransfer = "io.containerd.transfer.v1.local"
	PluginImages   = "io.containerd.cri.v1.images"
	PluginRuntime  = "io.containerd.cri.v1.runtime"
	PluginCRI      = "io.containerd.grpc.v1.cri" // images and runtime, before format 3
)

// Setting returns the value below keys in the tables of a configuration, or nil.
func Setting(tables map[string]any, keys ...string) any {
	var v any = tables
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

// DropIn returns the format of a file that a main file can import, and whether it has the tables of
// format 2.
//
// 1.7 supports format 2. All of 2.x support 3; 4 prevents 2.0 to 2.2 from starting. These also
// merge files as they are and take the format of the last for all: a file in format 3 disables the
// settings of CRI in a main file of format 2. What they then move from the old tables to the new
// ones replaces the existing settings.
// https://github.com/containerd/containerd/blob/v2.2.9/cmd/containerd/server/config/config.go
// https://github.com/containerd/containerd/blob/v2.2.9/plugins/cri/images/plugin.go
func (v Version) DropIn(main File) File {
	switch {
	case v.Before(Version{2, 0}):
		return File{2, true}
	case !v.MixesFormats() && main.Format == 2:
		return main
	}
	return File{3, false}
}
