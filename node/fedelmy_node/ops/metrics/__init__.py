"""Prometheus metrics of a node, imported only for `serve --metrics`.

    counters   counters and histograms, updated with every journaled event
    gauges     runs in progress, and the node's state at the moment of a scrape
    service    the registry and GET /metrics

Metrics name runs, steps and sites, never a path or a class. Only gauges of runs in progress have
the run and the step as labels, so the number of series does not grow with the number of past runs.
"""
