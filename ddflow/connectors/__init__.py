"""Sources and sinks beside an engine: they bring rows to a step and take its updates away, and are never inside one.

api            what an engine asks of a source and a sink; modes: how a sink is given its changes
sources, sinks `dd.sources` and `dd.sinks`: a function for each; address: both as a command line writes them
sql_table      shared by sinks of SQL; file_database: by DuckDB and SQLite; lake_table: by Delta Lake and Iceberg
formats/       messages of brokers and change feeds, as upserts
files/         readers and writers of Parquet, CSV, JSON lines and Arrow; landing/: the source of files that arrive
parquet/       the output folder of a state, in which committed epochs appear
"""
