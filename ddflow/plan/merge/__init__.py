"""Merging: what a key holds is folded with its events, cell by cell.

Invariant: every way to merge is one fold over the same walk. ``walk`` decides, for each event and group of columns,
whether it is folded, skipped, or clears; a fold then makes one column, for all keys at once, without knowing of orders;
and the full-row kernel takes the rows that come out as if they had come in. For most strategies the result is a choice
of input row per cell, so nothing but row numbers is computed, and any Arrow type works; and the same events must give
the same row however they are split into steps (docs/semantics.md, section 9).

    strategy   merge   expiry     what a spec may say of it (values: frozen, with a JSON form)
    checks   bound                what contradicts itself, and what is left of it when columns are known
    machine  machines             state machines, as a spec names them and as a plan binds them
    user_function                 functions of users, and digests of their code

>>> from ddflow.plan.merge.strategy import last, sum
>>> last().name, sum().name
('last', 'sum')
"""
