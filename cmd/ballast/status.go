package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/spf13/cobra"
)

// maxErrors limits the errors that "status" prints.
const maxErrors = 5

func (a *app) statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "show what ballastd is doing: pulls, prefetches, imports, verifications, and what failed last",
		Long: `Show what ballastd is doing, who waits for it, how fast it is, and what failed last. Kinds of work are prefetch,
import, containerd (a pull), background (the rest of a mounted model), abandoned (a pull whose client has
gone), repair, verify and scrub (a verification in the background). Errors of a model are shown until it has been downloaded.

LIMIT is what most of a download waited for in the last second: network (the registry and what is between), rate
(lazy.rate), hash (processors, also for unpacking) or disk. WAITING are clients, READS are reads of its files
by containers.`,
		Args: noArgs(""),
	}
	out := outputFlag(c)
	watch := watchFlag(c)
	c.RunE = a.asks(func(cmd *cobra.Command, cl *wire.Client, _ []string) error {
		return a.repeat(cmd.Context(), watch(), func() error {
			s, err := cl.Status(cmd.Context())
			if err != nil {
				return err
			}
			if *out == outJSON {
				return a.printJSON(s)
			}
			return a.status(s)
		})
	})
	return c
}

// status prints the work of the daemon; with --quiet only what is running.
func (a *app) status(s wire.Status) error {
	rows := [][]string{{"KIND", "MODEL", "DONE", "RATE", "LEFT", "LIMIT", "WAITING", "READS", "SINCE"}}
	failed := failures(s.Jobs)
	var ends time.Time // of the first abandoned download
	for _, j := range s.Jobs {
		if !j.Ended.IsZero() {
			continue
		}
		if j.Kind == wire.KindAbandoned && (ends.IsZero() || j.Ends.Before(ends)) {
			ends = j.Ends
		}
		if a.quiet {
			fmt.Fprintln(a.stdout, printable(j.Ref))
			continue
		}
		if s.Paused && j.Kind == wire.KindBackground {
			j.Limit = "paused"
		}
		rows = append(rows, jobRow(j))
	}
	if a.quiet {
		return nil
	}
	if len(rows) == 1 {
		rows = [][]string{{"nothing is being downloaded or verified"}}
	}
	if err := a.table(rows); err != nil {
		return err
	}
	if !ends.IsZero() {
		fmt.Fprintln(a.stdout)
		a.prose("", "no client waits for abandoned downloads; they stop in %s, or with \"ballast rm REF\" or \"ballast gc\"", took(max(0, time.Until(ends)).Round(time.Second)))
	}
	if s.WaitingReads > 0 {
		fmt.Fprintf(a.stdout, "\n%d reads of models that are not complete wait for bytes\n", s.WaitingReads)
	}
	if s.Paused {
		fmt.Fprintln(a.stdout, "\nbackground downloads are paused; \"ballast resume\" resumes them")
	}
	for i, j := range failed {
		if i == 0 {
			fmt.Fprintln(a.stdout, "\nlast errors:")
		}
		when := "trying again"
		if !j.Ended.IsZero() {
			when = ago(j.Ended)
		}
		about := orAll(j.Ref)
		a.prose("    ", "  %s: %s %s: %s", when, j.Kind, printable(about), printable(strings.TrimPrefix(j.Error.Message, about+": ")))
	}
	return nil
}

// failures returns the newest jobs with errors, without those of models with which the same has
// succeeded since.
func failures(jobs []wire.Job) (failed []wire.Job) {
	done := map[string]bool{}
	for _, j := range jobs { // the newest of those that have ended first
		names := []string{j.Ref, j.Table.String()}
		if j.Kind == wire.KindVerify {
			names = []string{"verify " + j.Ref}
		}
		switch {
		case j.Error != nil && len(failed) < maxErrors && !slices.ContainsFunc(names, func(n string) bool { return n != "" && done[n] }):
			failed = append(failed, j)
		case j.Error == nil && !j.Ended.IsZero():
			for _, n := range names {
				done[n] = true
			}
		}
	}
	return failed
}

// jobRow returns the table row of a running job.
func jobRow(j wire.Job) []string {
	row := []string{string(j.Kind), orAll(j.Ref), "starting", "", "", string(j.Limit), "", "", took(time.Since(j.Started))}
	if j.Queued {
		row[2] = "waiting"
	}
	if j.LimitedBy != "" {
		row[2] = limitText(j.LimitedBy, j.Until)
	}
	if j.Total > 0 {
		row[2] = fmt.Sprintf("%d%% of %s", percent(wire.Event{Total: j.Total, Completed: j.Completed}), size(j.Total))
	}
	if j.Ordered {
		row[2] += ", in recorded order"
	}
	if j.Rate > 0 {
		row[3] = size(j.Rate) + "/s"
		row[4] = timeLeft(max(0, j.Total-j.Completed), j.Rate)
	}
	for i, n := range []int64{int64(j.Waiting), j.Reads} {
		if n > 0 {
			row[6+i] = fmt.Sprint(n)
		}
	}
	return row
}

// orAll returns the reference of a job, or text for all models.
func orAll(ref string) string {
	if ref == "" {
		return "all models"
	}
	return ref
}
