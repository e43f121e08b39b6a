package node

import (
	"errors"
	"fmt"
	"strings"
)

// FileState is what a container sees of a file.
type FileState struct {
	Mode   string // octal, as printed by stat -c %a
	Size   int64  // bytes, as printed by stat
	SHA256 string // hex, of the content as read
}

// listScript prints "mode size sha256 path" for every regular file below its argument, and listEnd.
const listScript = `cd "$1" && $B find . \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./.bin \) -prune -o -type f -exec $B sh -c '
for f; do s=$($B sha256sum < "$f") && echo "$($B stat -c "%a %s" "$f") ${s%% *} ${f#./}" || exit 1; done' sh {} + && echo ` + listEnd

// listEnd is the last line of a listing. On a busy machine ctr ends before it has copied all that a container wrote.
const listEnd = "-- end --"

var errCut = errors.New("the listing is not complete")

// parseListing reads the output of listScript.
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

// BusyboxMount is a flag of ctr that brings the machine's busybox into a container.
const BusyboxMount = "type=bind,src=" + BusyboxPath + ",dst=/.bin/busybox,options=rbind:ro"

// Start starts a container whose root is the image and leaves it running, until the node is
// stopped.
func (n *Node) Start(snapshotter, ref, id string) Result {
	return n.Ctr("run", "-d", "--snapshotter", snapshotter, "--mount", BusyboxMount,
		ref, id, "/.bin/busybox", "sleep", "100000")
}

var containers int

// RunIn runs a shell script in a new container whose root is the image, with busybox mounted
// at /.bin and named $B, for images without a shell of their own.
func (n *Node) RunIn(snapshotter, ref, script string, args ...string) Result {
	return n.RunAs(nil, snapshotter, ref, script, args...)
}

// RunAs is RunIn with more flags of `ctr run`, such as those of another user.
func (n *Node) RunAs(flags []string, snapshotter, ref, script string, args ...string) Result {
	containers++
	id := fmt.Sprintf("run%d", containers)
	argv := append([]string{"run", "--rm", "--snapshotter", snapshotter, "--mount", BusyboxMount,
		"--env", "B=/.bin/busybox"}, flags...)
	argv = append(argv, ref, id, "/.bin/busybox", "sh", "-c", script, "sh")
	return n.Ctr(append(argv, args...)...)
}

// List runs a container whose root is the image and returns the regular files it sees below
// dir, by path relative to dir.
func (n *Node) List(snapshotter, ref, dir string) (map[string]FileState, error) {
	for tries := 0; ; tries++ {
		out := n.RunIn(snapshotter, ref, listScript, dir)
		if out.Err != nil {
			return nil, fmt.Errorf("%w: %s", out.Err, out.Output())
		}
		if files, err := parseListing(out.Stdout); err != errCut || tries == 4 {
			return files, err
		}
	}
}

// List returns the regular files that a container of the Busybox image sees below dir, by
// path relative to dir.
func (c *CRI) List(container, dir string) (map[string]FileState, error) {
	out, err := c.Exec(container, "/bin/busybox", "sh", "-c", "B=/bin/busybox; export B; "+listScript, "sh", dir)
	if err != nil {
		return nil, err
	}
	return parseListing(out)
}
