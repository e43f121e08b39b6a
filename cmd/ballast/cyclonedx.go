package main

import (
	"cmp"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
)

// printBOM prints the bill of materials of a model, in JSON of CycloneDX 1.6.
func (a *app) printBOM(d wire.Detail) error {
	if d.Description == nil {
		return fmt.Errorf("%s is an index: name one of its models: %w", strings.Join(d.Refs, " "), errdefs.ErrNotImplemented)
	}
	return cdx.NewBOMEncoder(a.stdout, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(billOf(d, time.Now()), cdx.SpecVersion1_6)
}

// hub is the Hub of Hugging Face, whose models have package URLs of their own.
const hub = "huggingface.co"

// modelRef is what the bill of materials calls the model.
const modelRef = "model"

// billOf returns the bill of materials of a model: it is about the model, and the components are its files.
func billOf(d wire.Detail, now time.Time) *cdx.BOM {
	bom := cdx.NewBOM()
	bom.SerialNumber = uuid.New().URN()
	tool := cdx.Component{Type: cdx.ComponentTypeApplication, Name: "ballast", Version: wire.ThisVersion().Version}
	model := modelComponent(d)
	bom.Metadata = &cdx.Metadata{
		Timestamp: now.UTC().Format(time.RFC3339), Component: &model,
		Tools: &cdx.ToolsChoice{Components: &[]cdx.Component{tool}},
	}
	files, known := fileComponents(d)
	bom.Components = &files
	bom.Compositions = &[]cdx.Composition{{Aggregate: known, Assemblies: &[]cdx.BOMReference{modelRef}}}
	return bom
}

// fileComponents returns the files of a model, and the archives whose files are not known yet.
func fileComponents(d wire.Detail) (all []cdx.Component, known cdx.CompositionAggregate) {
	all, known = []cdx.Component{}, cdx.CompositionAggregateComplete
	for _, f := range d.Files {
		c := cdx.Component{BOMRef: "file:" + f.Path, Type: cdx.ComponentTypeFile, Name: f.Path}
		switch {
		case f.Type == wire.TypeDir:
			continue
		case f.Type == wire.TypeSymlink:
			c.Properties = properties("ballast:link", f.Target)
		default:
			c.Hashes, c.Properties = hashes(f.Digest), properties("ballast:size", strconv.FormatInt(f.Size, 10))
			if c.Hashes == nil {
				known = cdx.CompositionAggregateIncomplete
			}
		}
		all = append(all, c)
	}
	for _, b := range d.Blobs {
		if b.Archive == "" || d.State == wire.StateComplete {
			continue
		}
		known = cdx.CompositionAggregateIncomplete
		all = append(all, cdx.Component{
			BOMRef: fmt.Sprintf("blob:%d:%s", b.Layer, b.Digest), Type: cdx.ComponentTypeFile, Name: b.Digest.String(), Hashes: hashes(b.Digest),
			Properties: properties("ballast:archive", b.Archive, "ballast:size", strconv.FormatInt(b.Size, 10)),
		})
	}
	return all, known
}

// modelComponent returns a model without its files.
func modelComponent(d wire.Detail) cdx.Component {
	about := d.Description.Descriptor
	c := cdx.Component{
		BOMRef: modelRef, Type: cdx.ComponentTypeMachineLearningModel,
		Name: cmp.Or(about.Name, about.Title), Version: cmp.Or(about.Version, about.Revision, d.Origin.Digest.String()),
		Description: about.Description, Licenses: licences(about.Licenses), ModelCard: modelCard(d.Description),
	}
	if about.Vendor != "" {
		c.Supplier = &cdx.OrganizationalEntity{Name: about.Vendor}
	}
	if len(about.Authors) > 0 {
		c.Authors = &[]cdx.OrganizationalContact{}
		for _, name := range about.Authors {
			*c.Authors = append(*c.Authors, cdx.OrganizationalContact{Name: name})
		}
	}
	var links []cdx.ExternalReference
	var rest []string
	link := func(t cdx.ExternalReferenceType, member, s string) {
		if isURL(s) {
			links = append(links, cdx.ExternalReference{Type: t, URL: s})
			return
		}
		rest = append(rest, "ballast:"+member, s)
	}
	link(cdx.ERTypeDocumentation, "docURL", about.DocURL)
	link(cdx.ERTypeVCS, "sourceURL", about.SourceURL)
	for _, name := range slices.Concat(d.Refs, d.Sources) {
		s, purl := origin(d, name)
		if s == "" {
			continue // a file of this machine
		}
		links = append(links, cdx.ExternalReference{Type: cdx.ERTypeDistribution, URL: s})
		c.PackageURL = cmp.Or(c.PackageURL, purl)
		c.Name = cmp.Or(c.Name, strings.Split(path.Base(name), ":")[0])
	}
	c.Name = cmp.Or(c.Name, d.Origin.Digest.String())
	if links != nil {
		c.ExternalReferences = &links
	}
	c.Properties = properties(slices.Concat(bomFacts(d), rest)...)
	return c
}

// bomFacts returns names and values of what CycloneDX has no member for.
func bomFacts(d wire.Detail) []string {
	about, k := d.Description.Descriptor, d.Description.Config
	all := []string{
		"ballast:origin:digest", d.Origin.Digest.String(), "ballast:origin:format", d.Origin.Format,
		"ballast:converted:digest", d.Manifest.String(), "ballast:state", string(d.State),
		"ballast:createdAt", about.CreatedAt, "ballast:revision", about.Revision, "ballast:weights", k.Format,
		"ballast:parameters", k.ParamSize, "ballast:precision", k.Precision, "ballast:quantization", k.Quantization,
		"ballast:runner", runnerText(d.Description.Runner),
	}
	if n := d.Description.ContextLength; n > 0 {
		all = append(all, "ballast:contextLength", strconv.FormatInt(n, 10))
	}
	if k.Capabilities != nil {
		all = append(all, "ballast:knowledgeCutoff", k.Capabilities.KnowledgeCutoff, "ballast:languages", strings.Join(k.Capabilities.Languages, " "))
	}
	if len(d.Signatures) == 0 {
		return append(all, "ballast:signature:state", "unchecked") // no rule of a node names the model
	}
	for _, s := range d.Signatures {
		all = append(all, "ballast:signature:rule", s.Rule, "ballast:signature:mode", s.Mode, "ballast:signature:state", string(s.State))
		for _, who := range s.Signers {
			all = append(all, "ballast:signature:signer", who)
		}
		for _, why := range s.Reasons {
			all = append(all, "ballast:signature:reason", why)
		}
	}
	return all
}

// modelCard returns what is known of the parameters of a model; nil if nothing is.
func modelCard(d *wire.Description) *cdx.MLModelCard {
	p := &cdx.MLModelParameters{ArchitectureFamily: d.Descriptor.Family, ModelArchitecture: d.Config.Architecture}
	if k := d.Config.Capabilities; k != nil {
		p.Inputs, p.Outputs = kinds(k.InputTypes), kinds(k.OutputTypes)
	}
	var sets []cdx.MLDatasetChoice
	for _, s := range d.Descriptor.DatasetsURL {
		data := &cdx.ComponentData{Type: cdx.ComponentDataTypeDataset}
		if isURL(s) {
			data.Contents = &cdx.ComponentDataContents{URL: s}
		} else {
			data.Name = s
		}
		sets = append(sets, cdx.MLDatasetChoice{ComponentData: data})
	}
	if sets != nil {
		p.Datasets = &sets
	}
	if *p == (cdx.MLModelParameters{}) {
		return nil
	}
	return &cdx.MLModelCard{ModelParameters: p}
}

func kinds(names []string) *[]cdx.MLInputOutputParameters {
	if len(names) == 0 {
		return nil
	}
	var all []cdx.MLInputOutputParameters
	for _, s := range names {
		all = append(all, cdx.MLInputOutputParameters{Format: s})
	}
	return &all
}

// origin returns the address of a model that has a name, and its package URL; both empty if the name is not that of a
// registry or web page.
// https://github.com/package-url/purl-spec/blob/main/types-doc/oci-definition.md
// https://github.com/package-url/purl-spec/blob/main/types-doc/huggingface-definition.md
func origin(d wire.Detail, name string) (address, purl string) {
	ref, err := resolve.ParseRef(name)
	switch {
	case err != nil:
		return "", ""
	case ref.URL != "":
		return ref.Recorded(), ""
	case ref.Host == hostname.Normal(hub):
		if rev := d.Description.Descriptor.Revision; rev != "" {
			purl = "pkg:huggingface/" + ref.Repository + "@" + url.PathEscape(strings.ToLower(rev))
		}
		return "https://" + hub + "/" + ref.Repository, purl
	}
	q := "?repository_url=" + strings.ReplaceAll(url.QueryEscape(ref.Name()), "%2F", "/")
	if ref.Tag != "" {
		q += "&tag=" + ref.Tag
	}
	return "oci://" + ref.Recorded(), "pkg:oci/" + path.Base(ref.Repository) + "@" + url.QueryEscape(d.Origin.Digest.String()) + q
}

// licences returns licences as CycloneDX has them: identifiers of SPDX and other names, or one expression.
func licences(names []string) *cdx.Licenses {
	var all cdx.Licenses
	for _, s := range names {
		switch known := convert.SPDX(s); {
		case known != "" && !strings.Contains(known, " "):
			all = append(all, cdx.LicenseChoice{License: &cdx.License{ID: known}})
		case known != "" && len(names) == 1:
			all = append(all, cdx.LicenseChoice{Expression: known})
		case s != "":
			all = append(all, cdx.LicenseChoice{License: &cdx.License{Name: s}})
		}
	}
	if all == nil {
		return nil
	}
	return &all
}

// hashes returns a digest as CycloneDX has it; nil if there is none.
func hashes(d digest.Digest) *[]cdx.Hash {
	algorithm := map[digest.Algorithm]cdx.HashAlgorithm{digest.SHA256: cdx.HashAlgoSHA256, digest.SHA384: cdx.HashAlgoSHA384, digest.SHA512: cdx.HashAlgoSHA512}
	if d == "" {
		return nil
	}
	return &[]cdx.Hash{{Algorithm: algorithm[d.Algorithm()], Value: d.Encoded()}}
}

// properties returns names and values as properties, without the values that are empty.
func properties(namesAndValues ...string) *[]cdx.Property {
	var all []cdx.Property
	for p := range slices.Chunk(namesAndValues, 2) {
		if p[1] != "" {
			all = append(all, cdx.Property{Name: p[0], Value: p[1]})
		}
	}
	return &all
}

// isURL reports whether text of a publisher is a URL that the schema of CycloneDX takes.
func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.String() == s
}
