"""Declare a flow: its inputs, specs, merges, operators and outputs.

A plan holds no rows and no state. It binds specs to the columns of their inputs, is written to and read from JSON, and
is compared with the plan of a state before that state opens. See `README.md` of this folder for the files.
"""
