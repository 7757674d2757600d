"""Fork Spark's Python workers from a daemon that has loaded ddflow and its compiled kernels.

Spark starts this module through ``spark.python.daemon.module``. So a forked worker has already imported everything.
Open files and threads would break in the forked children. So the daemon loads kernels in one thread and keeps no files
open. If the daemon failed, Spark would get no workers, so the daemon only logs errors. The worker then gets the same
error, and raises it.

>>> callable(main)
True
"""

import gc
import logging
import sys

from ddflow.errors import DdflowError

LOG = logging.getLogger("ddflow")


def preload_kernels() -> None:
    """Import the modules of tasks, and load the kernels if all of them are compiled.

    The function takes about a second and never raises an error.

    If some kernels are not compiled yet, each task loads or interprets the kernels that it calls. If the daemon
    compiled all kernels, the first batch would have to wait.
    """
    try:
        import spark_bridge.tasks  # noqa: F401
        from ddflow.kernels.cache import is_cache_filled
        from ddflow.kernels.compile import cache_directory
        from ddflow.tools.warmup import compile_all_kernels

        if is_cache_filled(cache_directory()):
            compile_all_kernels()
        # Spark collects garbage after every task. The loaded objects are permanent, so exclude them from garbage
        # collection.
        gc.collect()
        gc.freeze()
    except (DdflowError, ImportError, OSError, RuntimeError) as error:
        LOG.warning("Spark workers start without the compiled kernels of ddflow: %s", error)


def main() -> None:
    """Load the kernels, then run Spark's own daemon."""
    from pyspark.daemon import manager

    # Spark reads the port from the standard output, so nothing else may be printed there first.
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        preload_kernels()
    finally:
        sys.stdout = out
    manager()


if __name__ == "__main__":
    main()
