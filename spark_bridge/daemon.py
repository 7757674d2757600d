"""Fork Spark's Python workers from a daemon with ddflow loaded and its kernels read from their cache.

A worker that is forked here behaves like any other, and has nothing open. What a process has open or running when it
forks is broken in its children, so one thread loads kernels and does nothing else. A daemon that fails gives no worker
at all, so an error while loading is left for the worker to meet. Spark starts it, by ``spark.python.daemon.module``.

>>> callable(main)
True
"""

import gc
import logging
import sys

from ddflow.errors import DdflowError

LOG = logging.getLogger("ddflow")


def preload_kernels() -> None:
    """Import what tasks import, and load the kernels if all of them are compiled.  About a second; never fails.

    Where some are missing, tasks load or interpret what they call: compiling all of them here would keep the first
    batch waiting.
    """
    try:
        import spark_bridge.tasks  # noqa: F401
        from ddflow.kernels.cache import is_cache_filled
        from ddflow.kernels.compile import cache_directory
        from ddflow.tools.warmup import compile_all_kernels

        if is_cache_filled(cache_directory()):
            compile_all_kernels()
        # Spark collects garbage after every task, and what is loaded here never is any.
        gc.collect()
        gc.freeze()
    except (DdflowError, ImportError, OSError, RuntimeError) as error:
        LOG.warning("workers start without ddflow's kernels: %s", error)


def main() -> None:
    """Serve as Spark's own daemon does."""
    from pyspark.daemon import manager

    # Spark reads the port from the standard output; whatever loading prints must not come before it.
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        preload_kernels()
    finally:
        sys.stdout = out
    manager()


if __name__ == "__main__":
    main()
