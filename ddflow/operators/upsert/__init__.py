"""Turn the upserts of an input into differences from the input's stored rows.

`RunningUpsert` (``upsert``) sorts the events of a step by key and resolves them. ``resolution`` resolves full rows.
``merged`` first folds partial rows, state machines and user functions into full rows.
"""
