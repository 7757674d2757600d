"""What the user writes: flows, specs, what a merge may be.  No rows and no state.

A plan is bound to its columns (``bind``), written as JSON and read back (``codec``), and compared with the plan of a
state that is to be opened (``compatibility``).
"""
