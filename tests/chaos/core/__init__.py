"""The decision core driven directly with lists of events: no threads, no files, no SQLite.

    entries.py      what can change a site, and `replay`
    site.py         a site: journal, disk, and what is under way in its daemon
    executor.py     what a daemon does with decisions
    inbox.py        the real inbox on a journal and a disk in memory
    federation.py   the sites, the network between them, people and accidents
    checks.py       what must hold, always or at rest
    schedules.py    schedules by chance, and how a bad one is shortened

`python -m tests.chaos.core --schedules N --seed S` tries schedules.
"""
