"""The decision core driven directly with lists of events: no threads, no files, no SQLite.

    entries.py      what can change a site, and `replay`
    site.py         a site: journal, disk, and what is under way in its daemon
    inbox.py        the real inbox on a journal and a disk in memory
    executor.py     what a daemon does with events and decisions
    network.py      streams, transfers and trainers: what happens by itself
    federation.py   the sites together, people and accidents, and time
    checks.py       what must hold after each decision, at rest, and at the end
    shapes.py       plans of a few sites, in every topology and with every policy
    schedules.py    schedules by chance
    listing.py      bad schedules, shortened and told as lists of events
    bench.py        one site whose journal is set for a single decision

`python -m tests.chaos.core --schedules N --seed S` tries schedules.
"""
