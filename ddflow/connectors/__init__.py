"""Connect an engine to other systems: sources feed the engine, and sinks write the engine's updates.

`ddflow.engine.run` opens sources and sinks. Connectors import neither the engine nor the plan. `dd.sources` and
`dd.sinks` have one function for each system. `api.py` defines the protocol of sources and sinks.
"""
