"""Declare a flow: its inputs, specs, merges, operators and outputs.

A plan holds no rows and no state. A plan binds each spec to the columns of its input. A state stores its plan as JSON.
Before the state opens, ddflow compares the stored plan with the new plan. See `README.md` of this folder for the files.
"""
