package convert

import (
	"cmp"
	"strconv"
)

// ParamCount converts a number of parameters to the form of ModelPack, such as "1.2B". It returns
// "" for fewer than a thousand, for which there is no unit.
func ParamCount(n uint64) string { return countParams(strconv.FormatUint(n, 10)) }

// MergeConfig returns origin with its empty fields set from header, the metadata in the headers of
// files. ModelFS is that of origin.
func MergeConfig(origin, header Config) Config {
	d, h := origin.Descriptor, header.Descriptor
	c, k := origin.Config, header.Config
	return Config{
		Descriptor: ModelDescriptor{
			CreatedAt:   cmp.Or(d.CreatedAt, h.CreatedAt),
			Authors:     orList(d.Authors, h.Authors),
			Vendor:      cmp.Or(d.Vendor, h.Vendor),
			Family:      cmp.Or(d.Family, h.Family),
			Name:        cmp.Or(d.Name, h.Name),
			Version:     cmp.Or(d.Version, h.Version),
			Title:       cmp.Or(d.Title, h.Title),
			Description: cmp.Or(d.Description, h.Description),
			DocURL:      cmp.Or(d.DocURL, h.DocURL),
			SourceURL:   cmp.Or(d.SourceURL, h.SourceURL),
			DatasetsURL: orList(d.DatasetsURL, h.DatasetsURL),
			Revision:    cmp.Or(d.Revision, h.Revision),
			Licenses:    orList(d.Licenses, h.Licenses),
		},
		ModelFS: origin.ModelFS,
		Config: ModelConfig{
			Architecture: cmp.Or(c.Architecture, k.Architecture),
			Format:       cmp.Or(c.Format, k.Format),
			ParamSize:    cmp.Or(c.ParamSize, k.ParamSize),
			Precision:    cmp.Or(c.Precision, k.Precision),
			Quantization: cmp.Or(c.Quantization, k.Quantization),
			Capabilities: mergeCapabilities(c.Capabilities, k.Capabilities),
		},
	}
}

func mergeCapabilities(origin, header *Capabilities) *Capabilities {
	if origin == nil || header == nil {
		return cmp.Or(origin, header)
	}
	return &Capabilities{
		InputTypes:      orList(origin.InputTypes, header.InputTypes),
		OutputTypes:     orList(origin.OutputTypes, header.OutputTypes),
		KnowledgeCutoff: cmp.Or(origin.KnowledgeCutoff, header.KnowledgeCutoff),
		Reasoning:       cmp.Or(origin.Reasoning, header.Reasoning),
		ToolUsage:       cmp.Or(origin.ToolUsage, header.ToolUsage),
		Reward:          cmp.Or(origin.Reward, header.Reward),
		Languages:       orList(origin.Languages, header.Languages),
	}
}

func orList(origin, header []string) []string {
	if len(origin) > 0 {
		return origin
	}
	return header
}
