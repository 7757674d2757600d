"""Sources and sinks beside an engine: they bring rows to a step and take its updates away, and are never inside one.

protocol    what an engine asks of them
opening     a sink by its target
formats     messages of brokers and change feeds, as upserts
files       the first source: Parquet, CSV, JSON lines and Arrow by extension; and files out
parquet     the first sink: a folder in which committed epochs appear
"""
