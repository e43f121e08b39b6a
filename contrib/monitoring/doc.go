// Package monitoring has no code: its files are for Prometheus and Grafana. rules.yaml has alerts, dashboard.json is imported into
// Grafana. The tests parse both as Prometheus does, evaluate every expression on metrics that a node and a controller have
// answered (testdata), and have each alert fire and not fire.
package monitoring
