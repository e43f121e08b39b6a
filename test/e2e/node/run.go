package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// FileState describes a file as seen in a container.
type FileState struct {
	Mode   string // octal, as printed by stat -c %a
	Size   int64  // bytes, as printed by stat
	SHA256 string // of the content, in hex
}

// listScript prints "mode size sha256 path" for every regular file below its argument, and then
// listEnd.
const listScript = `cd "$1" && $B find . \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./.bin \) -prune -o -type f -exec $B sh -c '
for f; do s=$($B sha256sum < "$f") && echo "$($B stat -c "%a %s" "$f") ${s%% *} ${f#./}" || exit 1; done' sh {} + && echo ` + listEnd

// listEnd is the last line of a listing, and of the output of RunIn and Exec. On a busy machine ctr
// may end before it has copied all output of a container.
const listEnd = "-- end --"

var errCut = errors.New("the listing is not complete")

// whole calls run until its output ends with listEnd, which it removes, or until run fails, but at
// most five times.
func whole(run func() Result) Result {
	for tries := 1; ; tries++ {
		r := run()
		out, found := strings.CutSuffix(r.Stdout, listEnd+"\n")
		if r.Stdout = out; found || r.Err != nil {
			return r
		}
		if tries == 5 {
			r.Err = errors.New("the output is not complete")
			return r
		}
	}
}

// parseListing parses the output of listScript.
func parseListing(out string) (map[string]FileState, error) {
	out, whole := strings.CutSuffix(out, listEnd+"\n")
	if !whole {
		return nil, errCut
	}
	files := map[string]FileState{}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) != 4 {
			return nil, fmt.Errorf("unexpected line %q", line)
		}
		var size int64
		if _, err := fmt.Sscan(f[1], &size); err != nil {
			return nil, fmt.Errorf("unexpected line %q: %w", line, err)
		}
		files[f[3]] = FileState{Mode: f[0], Size: size, SHA256: f[2]}
	}
	return files, nil
}

// BusyboxMount is a flag of ctr that mounts the machine's busybox in a container.
const BusyboxMount = "type=bind,src=" + BusyboxPath + ",dst=/.bin/busybox,options=rbind:ro"

// Start starts a container with the image as its root, which runs until the node is stopped.
func (n *Node) Start(snapshotter, ref, id string) Result {
	return n.Ctr("run", "-d", "--snapshotter", snapshotter, "--mount", BusyboxMount,
		ref, id, "/.bin/busybox", "sleep", "100000")
}

// containers numbers the containers of this program.
var containers atomic.Int64

// WithCgroup adds a cgroup to the arguments of "ctr run": by default it is named after the container, and
// machines share the cgroups of the kernel.
func WithCgroup(args []string) []string {
	if len(args) == 0 || args[0] != "run" {
		return args
	}
	return append([]string{"run", "--cgroup", "/ballast-test-" + rand.Text()}, args[1:]...)
}

// RunIn runs a shell script in a new container with the image as its root, and again in another one
// if ctr lost output. busybox is mounted at /.bin and its path is in $B, for images without a shell.
func (n *Node) RunIn(snapshotter, ref, script string, args ...string) Result {
	return n.RunAs(nil, snapshotter, ref, script, args...)
}

// RunAs is RunIn with additional flags of `ctr run`, such as those of another user.
func (n *Node) RunAs(flags []string, snapshotter, ref, script string, args ...string) Result {
	return whole(func() Result {
		id := fmt.Sprintf("run%d", containers.Add(1))
		argv := append([]string{"run", "--rm", "--snapshotter", snapshotter, "--mount", BusyboxMount,
			"--env", "B=/.bin/busybox"}, flags...)
		argv = append(argv, ref, id, "/.bin/busybox", "sh", "-c", "trap 'echo "+listEnd+"' EXIT\n"+script, "sh")
		return n.Ctr(append(argv, args...)...)
	})
}

// Exec runs a command in a running container of Start, and again if ctr lost output.
func (n *Node) Exec(container string, argv ...string) Result {
	return whole(func() Result {
		return n.Ctr(append([]string{"tasks", "exec", "--exec-id", fmt.Sprintf("exec%d", containers.Add(1)), container,
			"/.bin/busybox", "sh", "-c", `"$@" && echo ` + listEnd, "sh"}, argv...)...)
	})
}

// List returns the regular files below dir in a container with the image as its root, by path
// relative to dir.
func (n *Node) List(snapshotter, ref, dir string) (map[string]FileState, error) {
	out := n.RunIn(snapshotter, ref, listScript, dir)
	if out.Err != nil {
		return nil, fmt.Errorf("%w: %s", out.Err, out.Output())
	}
	return parseListing(out.Stdout)
}

// List returns the regular files below dir in a container of the Busybox image, by path relative to
// dir.
func (c *CRI) List(container, dir string) (map[string]FileState, error) {
	out, err := c.Exec(container, "/bin/busybox", "sh", "-c", "B=/bin/busybox; export B; "+listScript, "sh", dir)
	if err != nil {
		return nil, err
	}
	return parseListing(out)
}
