"""Write updates of outputs as Parquet files, for other programs to read while ddflow runs.

`OutputFolder` holds the outputs of a state and shows the files of committed epochs. `ParquetSink` is the sink
``dd.sinks.parquet``, which adds one file for each epoch.
"""
