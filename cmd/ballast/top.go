package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"
)

func (a *app) topCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "top",
		Short: "watch the downloads of ballastd, by registry and by model",
		Long: `Show every second how fast models are downloaded from each registry, and what "ballast status" shows of each
model: its rate, who waits, and what limits it. A registry is that in the names of its models; mirrors may serve
them. Of each mirror it shows how often bytes came from elsewhere (LEFT), and why the last time. It goes on after a
restart of ballastd, until Ctrl-C. With -o json, it shows the status once.`,
		Args: noArgs(""),
	}
	out := outputFlag(c)
	times := c.Flags().IntP("iterations", "n", 0, "end after `N` outputs, which stay on the terminal (default: until Ctrl-C)")
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		if *out == outJSON {
			*times = cmp.Or(*times, 1)
		}
		if *times < 0 {
			return usage("-n %d is negative", *times)
		}
		return a.repeat(cmd.Context(), *times, func() error {
			s, err := cl.Status(cmd.Context())
			if err != nil {
				return err
			}
			switch {
			case *out == outJSON:
				return a.printJSON(s)
			case a.quiet:
				return a.status(s)
			}
			if err := a.table(registryRows(s.Jobs)); err != nil {
				return err
			}
			if len(s.Mirrors) > 0 {
				fmt.Fprintln(a.stdout)
				if err := a.table(mirrorRows(s.Mirrors)); err != nil {
					return err
				}
			}
			fmt.Fprintln(a.stdout)
			return a.status(s)
		})
	})
	return c
}

// registryRows returns the table of the registries of running jobs. Jobs that wait for the same download count once.
func registryRows(jobs []wire.Job) [][]string {
	models := map[string]map[digest.Digest]wire.Job{} // by registry and table
	for _, j := range jobs {
		host, _, ok := strings.Cut(j.Ref, "/")
		if !ok || !j.Ended.IsZero() || j.Table == "" {
			continue
		}
		if models[host] == nil {
			models[host] = map[digest.Digest]wire.Job{}
		}
		if old, ok := models[host][j.Table]; !ok || j.Rate > old.Rate {
			models[host][j.Table] = j
		}
	}
	rows := [][]string{{"REGISTRY", "MODELS", "DONE", "RATE", "READS"}}
	for _, host := range slices.Sorted(maps.Keys(models)) {
		var all wire.Job
		for _, j := range models[host] {
			all.Total, all.Completed, all.Rate, all.Reads = all.Total+j.Total, all.Completed+j.Completed, all.Rate+j.Rate, all.Reads+j.Reads
		}
		rows = append(rows, []string{host, fmt.Sprint(len(models[host])), size(all.Completed) + " of " + size(all.Total), size(all.Rate) + "/s", fmt.Sprint(all.Reads)})
	}
	return rows
}

// mirrorRows returns the table of mirrors.
func mirrorRows(mirrors []wire.Mirror) [][]string {
	rows := [][]string{{"MIRROR", "RECEIVED", "LEFT", "WRONG", "LAST", "WHY"}}
	for _, m := range mirrors {
		var left int64
		for _, n := range m.Left {
			left += n
		}
		last := "-"
		if m.Last != nil {
			last = m.Last.At.Local().Format(time.TimeOnly)
		}
		rows = append(rows, []string{m.Address, size(m.Bytes), fmt.Sprint(left), fmt.Sprint(m.Wrong), last, cmp.Or(m.Why(), "-")})
	}
	return rows
}
