// Package monitoring tests the files of contrib/monitoring: rules.yaml has alerts for Prometheus, dashboard.json is
// imported into Grafana. Both are parsed as Prometheus does, every expression is evaluated on metrics that a node and
// a controller have answered (testdata), and each alert fires and does not fire.
package monitoring
