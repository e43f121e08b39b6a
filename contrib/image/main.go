package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/contrib/image/build"
)

// settings are the settings of the command line.
type settings struct {
	build.Build
	layout string // directory of the OCI layout
	root   string // directory of the files of one image
	demo   bool   // the image of the demo
	archs  []string
	epoch  time.Time
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run runs a command line.
func run(ctx context.Context, args []string) error {
	s := settings{}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&s.Source, "source", ".", "`directory` of the repository")
	flags.StringVar(&s.layout, "o", "", "write an OCI layout to this `directory`, which must not exist or be one")
	flags.StringVar(&s.root, "root", "", "write the files of one image below this `directory`")
	flags.StringVar(&s.Version, "version", "dev", "`version` that the programs say")
	archs := flags.String("arch", strings.Join(build.Archs, ","), "`architectures`")
	flags.BoolVar(&s.demo, "demo", false, "the image of the demo, for the architecture of this machine")
	epoch := flags.Int64("epoch", 0, "time of all files and of the image, in `seconds` since 1970; 0 is that of the commit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s.archs = strings.Split(*archs, ",")
	if s.demo {
		s.archs = []string{runtime.GOARCH}
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is not understood", flags.Arg(0))
	case (s.layout == "") == (s.root == ""):
		return errors.New("either -o or -root is needed")
	case s.demo && s.root != "":
		return errors.New("-demo is for -o")
	case s.root != "" && len(s.archs) != 1:
		return errors.New("-root is for one -arch")
	}
	var err error
	if s.Commit, err = build.CommitOf(ctx, s.Source); err != nil && s.root == "" {
		return err // the Dockerfile may have no clone
	}
	if s.epoch = s.Commit.Time; *epoch != 0 {
		s.epoch = time.Unix(*epoch, 0).UTC()
	}
	if s.root != "" {
		return s.writeRoot(ctx)
	}
	return s.writeLayout(ctx)
}

// writeRoot writes the content of the layers of an image as files.
func (s *settings) writeRoot(ctx context.Context) error {
	common, err := s.common(ctx)
	if err != nil {
		return err
	}
	built, err := programs(ctx, s.archs[0], s.Ours(), s.Fleet())
	if err != nil {
		return err
	}
	for _, f := range append(common, built...) {
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
