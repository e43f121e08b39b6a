package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/export"
	"github.com/spf13/cobra"
)

// A publication is what its publisher says of a model. It comes before what the origin and the headers say.
type publication struct {
	name, version         string
	licenses, annotations []string
}

func (p *publication) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.name, "name", "", "`name` of the model in its config")
	f.StringVar(&p.version, "version", "", "`version` of the model in its config")
	f.StringArrayVar(&p.licenses, "license", nil, "`licence` of the model in its config, an SPDX expression (repeatable; default: that of README.md or of the weights)")
	f.StringArrayVar(&p.annotations, "annotation", nil, "for modelpack, cnai and image: an annotation of the manifest, `KEY=VALUE` (repeatable)")
}

// inConfig reports whether something goes into the config.
func (p publication) inConfig() bool { return p.name != "" || p.version != "" || len(p.licenses) > 0 }

// given reports whether anything is said.
func (p publication) given() bool { return p.inConfig() || len(p.annotations) > 0 }

// check returns the annotations, or an error if the form has no place for what is said.
func (p publication) check(o export.Options) (map[string]string, error) {
	switch {
	case !p.inConfig():
	case o.Form == export.FormImage:
		return nil, errors.New("--name, --version and --license are for forms with the config of a model; for an image, write --annotation org.opencontainers.image.licenses=MIT")
	case o.NoChunks:
		return nil, errors.New("--name, --version and --license do not go with --no-chunks and --referrer: they write what nodes make of SRC")
	}
	annotations := map[string]string{}
	for _, a := range p.annotations {
		key, value, ok := strings.Cut(a, "=")
		if _, twice := annotations[key]; !ok || key == "" || twice {
			return nil, fmt.Errorf("--annotation %.200q: write KEY=VALUE, each KEY once", a)
		}
		annotations[key] = value
	}
	return annotations, nil
}

// describe returns a model with what is said.
func (p publication) describe(m *convert.Model) *convert.Model {
	if !p.inConfig() {
		return m
	}
	said := *m
	said.Config = convert.MergeConfig(convert.Config{Descriptor: convert.ModelDescriptor{Name: p.name, Version: p.version, Licenses: p.licenses}}, m.Config)
	said.Config.ModelFS = m.Config.ModelFS
	return &said
}
