package hostname_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/google/go-cmp/cmp"
)

// TestEntries orders the keys of a docker config for a repository, whatever their order in the file is.
func TestEntries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, keys, repository, want string }{
		{"paths", "r.example/team-a r.example r.example/team-b r.example/team", "r.example/team-a/m", "r.example/team-a r.example"},
		{"whole names", "r.example/team r.example/team-a/m/x r.example/team-a/model", "r.example/team-a/m", ""},
		{"of a repository", "r.example/team/m r.example/team/", "r.example/team/m", "r.example/team/m r.example/team/"},
		{"versions of the interface", "https://r.example/v2/ http://r.example/v1/team r.example/v2x", "r.example/team/m", "http://r.example/v1/team https://r.example/v2/"},
		{"spellings", "R.Example:0443 r.example. r.example:80", "r.example/m", "R.Example:0443 r.example."},
		{"ports", "r.example r.example:5000/team r.example:5001", "r.example:5000/team/m", "r.example:5000/team"},
		{"Docker Hub", "docker.io https://index.docker.io/v1/ registry-1.docker.io docker.io/other", "docker.io/library/m", "https://index.docker.io/v1/ docker.io registry-1.docker.io"},
		{"of Docker Hub", "docker.io/team https://index.docker.io/v1/team2 index.docker.io/team/m", "docker.io/team/m", "index.docker.io/team/m docker.io/team"},
		{"aliases", "huggingface.co/org *.docker.io", "hf.co/org/M", "huggingface.co/org"},
		{"pattern of an alias", "*.docker.io", "docker.io/library/m", "*.docker.io"},
		{"labels", "*.dkr.ecr.*.amazonaws.com *.amazonaws.com *", "1.dkr.ecr.eu-west-1.amazonaws.com/m", "*.dkr.ecr.*.amazonaws.com"},
		{"the longest pattern", "*.example r*.example r.example *.example/team", "r.example/team/m", "*.example/team r.example r*.example *.example"},
		{"port of a pattern", "*.example:5000 *.example *.example:443", "r.example/m", "*.example *.example:443"},
		{"part of a label", "reg[0-9]-?.example [.example", "reg1-a.example/m", "reg[0-9]-?.example"},
		{"addresses", "[::1] [0:0::1]:5000", "[::1]:5000/m", "[0:0::1]:5000"},
		{"an address is no pattern", "[::1]", "1/m", ""},
		{"nothing", " / https://", "r.example/m", ""},
	} {
		host, repository, _ := strings.Cut(tt.repository, "/")
		keys := strings.Split(tt.keys, " ")
		for range 2 {
			got := strings.Join(hostname.Entries(slices.Values(keys), hostname.Normal(host), repository), " ")
			if d := cmp.Diff(got, tt.want); d != "" {
				t.Errorf("%s (-got +want):\n%s", tt.name, d)
			}
			slices.Reverse(keys)
		}
	}
}
