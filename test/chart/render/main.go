// Render prints the chart as `helm template` does, including hooks, for tests outside of this module:
//
//	render CHART [VALUES-AS-JSON]
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/ballast-dev/ballast/test/chart"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	values := map[string]any{}
	switch {
	case len(args) == 0 || len(args) > 2:
		return errors.New("usage: render CHART [VALUES-AS-JSON]")
	case len(args) == 2:
		if err := json.Unmarshal([]byte(args[1]), &values); err != nil {
			return err
		}
	}
	docs, err := chart.Render(args[0], values)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		for _, d := range docs[name] {
			fmt.Printf("---\n%s\n", d)
		}
	}
	return nil
}
