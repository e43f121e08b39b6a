package main

import (
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
	"github.com/google/go-cmp/cmp"
)

// TestSetupRecall combines flags with the choices of the last set-up.
func TestSetupRecall(t *testing.T) {
	const forCtr, forDocker, forPods = `"snapshotterOnly": true`, `"docker": true, "snapshotterOnly": true`, `"runtimeHandler": "a", "like": ["x"]`
	for _, tt := range []struct {
		name string
		last string // options of the record; "": there is none
		args []string
		want setup.Options
	}{
		{"the chart after ctr", forCtr, []string{"--runtime-handler=b", "--like="}, setup.Options{RuntimeHandler: "b"}},
		{"the chart for all pods after ctr", forCtr, []string{"--runtime-handler=", "--like="}, setup.Options{}},
		{"the chart after Docker", forDocker, []string{"--runtime-handler=b", "--like="}, setup.Options{RuntimeHandler: "b", Docker: true}},
		{"ctr after pods", forPods, []string{"--snapshotter-only"}, setup.Options{SnapshotterOnly: true}},
		{"all pods after some", forPods, []string{"--runtime-handler="}, setup.Options{}},
		{"another handler", forPods, []string{"--runtime-handler=b"}, setup.Options{RuntimeHandler: "b", Like: []string{"x"}}},
		{"an explicit contradiction", forPods, []string{"--snapshotter-only", "--like=y"}, setup.Options{SnapshotterOnly: true, Like: []string{"y"}}},
		{"both", forPods, []string{"--runtime-handler=b", "--snapshotter-only"}, setup.Options{RuntimeHandler: "b", SnapshotterOnly: true, Like: []string{"x"}}},
		{"not only the snapshotter", forPods, []string{"--snapshotter-only=false"}, setup.Options{RuntimeHandler: "a", Like: []string{"x"}}},
		{"nothing after ctr", forCtr, nil, setup.Options{SnapshotterOnly: true}},
		{"Docker after pods", forPods, []string{"--docker"}, setup.Options{RuntimeHandler: "a", Like: []string{"x"}, Docker: true}},
		{"Docker first", "", []string{"--docker"}, setup.Options{SnapshotterOnly: true, Docker: true}},
		{"Docker and pods first", "", []string{"--docker", "--runtime-handler=b"}, setup.Options{RuntimeHandler: "b", Docker: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := t.TempDir()
			if tt.last != "" {
				put(t, host, "var/lib/ballast-setup/setup.json", []byte(`{"version": 1, "options": {`+tt.last+`}}`))
			}
			c := new(app).setupCommand()
			if err := c.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			var o setupFlags
			o.Host = host
			o.RuntimeHandler, _ = c.Flags().GetString("runtime-handler")
			o.Like, _ = c.Flags().GetStringSlice("like")
			o.SnapshotterOnly, _ = c.Flags().GetBool("snapshotter-only")
			o.Docker, _ = c.Flags().GetBool("docker")
			if err := o.recall(c); err != nil {
				t.Fatal(err)
			}
			got := setup.Options{RuntimeHandler: o.RuntimeHandler, Like: o.Like, SnapshotterOnly: o.SnapshotterOnly, Docker: o.Docker}
			if len(got.Like) == 0 {
				got.Like = nil
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
