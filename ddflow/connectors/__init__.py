"""Sources and sinks that feed an engine and take its updates away.

They run beside an engine and never inside it: `ddflow.engine.run` opens them, and they know no engine and no plan.
`dd.sources` and `dd.sinks` have one function for each system. The protocol of both is in `api.py`.
"""
