package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const module = "github.com/ballast-dev/ballast"

// settings are the settings of the command line.
type settings struct {
	source  string // the repository
	layout  string // directory of the OCI layout
	root    string // directory of the files of one image
	archs   []string
	version string
	epoch   time.Time
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run runs a command line.
func run(args []string) error {
	s := settings{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&s.source, "source", ".", "`directory` of the repository")
	flags.StringVar(&s.layout, "o", "", "write an OCI layout to this `directory`, which must not exist or be one")
	flags.StringVar(&s.root, "root", "", "write the files of one image below this `directory`")
	flags.StringVar(&s.version, "version", "dev", "`version` that the programs say")
	archs := flags.String("arch", "amd64,arm64", "`architectures`")
	epoch := flags.Int64("epoch", 0, "time of all files and of the image, in `seconds` since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s.archs, s.epoch = strings.Split(*archs, ","), time.Unix(*epoch, 0).UTC()
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is not understood", flags.Arg(0))
	case (s.layout == "") == (s.root == ""):
		return errors.New("either -o or -root is needed")
	case s.root != "" && len(s.archs) != 1:
		return errors.New("-root is for one -arch")
	}
	if s.root != "" {
		return s.writeRoot()
	}
	return s.writeLayout()
}

// writeRoot writes the content of the layers of an image as files.
func (s *settings) writeRoot() error {
	common, err := s.common()
	if err != nil {
		return err
	}
	programs, err := s.programs(s.archs[0])
	if err != nil {
		return err
	}
	for _, f := range append(common, programs...) {
		path := filepath.Join(s.root, f.path)
		if f.data == nil {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, f.data, 0o600)
		}
		if err := errors.Join(err, os.Chmod(path, f.mode)); err != nil { // independent of the umask
			return err
		}
	}
	return nil
}

// build builds the two programs for an architecture into a directory, for its oldest processors.
func (s *settings) build(arch, dir string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X "+module+"/cmd/internal/api.version="+s.version,
		"-o", dir+string(filepath.Separator), "./cmd/ballast", "./cmd/ballastd")
	cmd.Dir = s.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s: %w\n%s", arch, err, out)
	}
	return nil
}
