"""Fork Spark's Python workers from a daemon that has loaded ddflow and its compiled kernels.

Spark starts this module through ``spark.python.daemon.module``. Forked workers start with everything imported. Open
files and threads break in the children of a fork, so the daemon loads kernels in one thread and opens nothing else. A
daemon that fails would give no worker at all, so it only logs errors, and the worker meets them again.

>>> callable(main)
True
"""

import gc
import logging
import sys

from ddflow.errors import DdflowError

LOG = logging.getLogger("ddflow")


def preload_kernels() -> None:
    """Import the modules of tasks, and load the kernels if all of them are compiled. Takes about a second; never fails.

    If kernels are missing, each task loads or interprets the ones it calls. Compiling all of them here would delay the
    first batch.
    """
    try:
        import spark_bridge.tasks  # noqa: F401
        from ddflow.kernels.cache import is_cache_filled
        from ddflow.kernels.compile import cache_directory
        from ddflow.tools.warmup import compile_all_kernels

        if is_cache_filled(cache_directory()):
            compile_all_kernels()
        # Spark collects garbage after every task; these objects are permanent, so exclude them.
        gc.collect()
        gc.freeze()
    except (DdflowError, ImportError, OSError, RuntimeError) as error:
        LOG.warning("workers start without ddflow's kernels: %s", error)


def main() -> None:
    """Serve as Spark's own daemon does."""
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
