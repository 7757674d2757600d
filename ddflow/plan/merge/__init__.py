"""Declare and bind merges: how the events of a key fold into its stored row, cell by cell.

Every kind of merge is one fold over the same walk. The walk (`ddflow/kernels/walk.py`) decides for each event and group
of columns whether to fold it, ignore it, or clear the cells. A fold then computes one column for all keys at once,
without looking at orders. The full-row kernel treats the merged rows as if they had been ingested. Most strategies only
choose an input row for each cell: ddflow computes row numbers, and every Arrow type works.

Invariant: the same events give the same row, however they are split into steps (docs/semantics.md, section 9).

>>> from ddflow.plan.merge.strategy import last, sum
>>> last().name, sum().name
('last', 'sum')
"""
