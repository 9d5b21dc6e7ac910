"""Prometheus metrics of a node; nothing here is imported unless `serve --metrics` asks for it.

    counting    events folded into counters and histograms as they are committed
    under_way   gauges of the runs that are under way, folded from the same events; gone when a run is over
    present     what is the case at the moment of a scrape: states, disk, certificate, services, trainers
    door        the HTTP door: GET /metrics and nothing else, bounded in time, size and number

A metric names runs, steps and sites, never a path or a class. Names of runs and steps are labels only of gauges of runs
that are under way, so the number of series does not grow with a node's past.
"""
