"""Tools that check, read, compare, migrate and roll back the states of flows.

`dd` and the command line call these tools; each tool is one file. A tool opens a state through its store or a snapshot
and needs no running engine. Only ``rollback.py`` and ``migrate.py`` write to a state. ``README.md`` lists all files.
"""
