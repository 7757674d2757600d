"""Operators: updates in, updates out, one operator a file.

Those with state (`upsert`, `count`) go the same three steps: look up what the keys of the step hold, judge with a
kernel (which changes nothing), and apply the change once the whole step has succeeded.  Those without (`linear`) go
one.
"""
