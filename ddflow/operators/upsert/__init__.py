"""The upsert operator: events in, differences out.

events      events in the order of their times, and by key
orders      which event of a key wins, as words
upsert      the step for full rows: sort, look up, resolve, emit
merged      the step for partial rows, machines and functions, which makes full rows first
expiry      keys that are forgotten
"""
