"""Declare and bind merges: how the events of a key change the stored row of the key, cell by cell.

Every kind of merge has two parts, a walk and a fold. For each event and group of columns, the walk
(`ddflow/kernels/walk.py`) decides whether to fold the event, to ignore the event, or to clear the cells. After the
walk, a fold computes one column for all keys at once. The fold does not read the order columns. The kernel for full
rows then treats the merged rows like ingested rows. Most strategies only choose an input row for each cell. A strategy
that only chooses rows computes row numbers, so the strategy works on every Arrow type.

Invariant: the same events give the same row, however they are split into steps (docs/semantics.md, section 9).

>>> from ddflow.plan.merge.strategy import last, sum
>>> last().name, sum().name
('last', 'sum')
"""
