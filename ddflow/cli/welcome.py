"""What ``ddflow`` alone says: what you may have, and what to try with it, on one screen.

Invariant: 80 columns and 24 lines; every line that begins with ``ddflow`` is a command whose verb and options exist
(a test runs each through its parser).

>>> max(map(len, TEXT.splitlines())) <= 80, len(TEXT.splitlines()) <= 24
(True, True)
"""

from typing import Final

TEXT: Final = """\
ddflow: upsert streams in, difference streams out

Two files: which rows were added, removed or changed
    ddflow compare monday.csv tuesday.csv --key id

A file a day: the differences, with every retraction; or live counts
    ddflow diff monday.csv tuesday.csv --key id -o changes.parquet
    ddflow count monday.csv tuesday.csv --key id --by city --net

A question about them, in SQL
    ddflow sql "select city, sum(n) n from t group by city" t=monday.csv:key=id

Files that land, a Postgres, a topic: tables kept up to date from them
    ddflow run flow.py --state s --from 't=files:in/*.csv' --to t=sqlite:a.db#t

A state that these left (--state): what is in it, an output live, a row's story
    ddflow inspect s
    ddflow watch s by_city
    ddflow why s id=17

`ddflow VERB --help` has examples of a verb, `ddflow --help` lists all, and
`ddflow --install-completion` lets Tab complete them.
"""
