"""The upsert operator: events in, differences out.

events      events in the order of their times, and by key
orders      which event of a key wins, as words
upsert      an input as an operator: its state and its settings
resolution  the step for full rows: sort, look up, resolve, emit
state       what a step reads of the arrangement, and live keys for other files
merged      the step for partial rows, machines and functions, which makes full rows first
walking     which events are folded into which cells; folds: how; user_functions: by functions of users
expiry      keys that are forgotten
"""
