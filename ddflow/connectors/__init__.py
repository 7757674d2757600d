"""Sources and sinks beside an engine: they bring rows to a step and take its updates away, and are never inside one."""
