"""Tools that check, read, compare, migrate and roll back the states of flows.

`dd` and the command line call them; each tool is one file. They open a state through its store or a snapshot and need
no running engine. Only ``rollback.py`` and ``migrate.py`` write to a state. ``README.md`` in this folder lists all.
"""
