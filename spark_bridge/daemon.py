"""The daemon that Spark's Python workers are forked from, with ddflow loaded and its kernels read from their cache.

Invariant: a worker that is forked from here behaves as any other, and has nothing open: no store, no thread, no state
of any flow. What a process has open or has running when it forks is broken in its children, so kernels are loaded in
one thread and nothing else is; and a daemon that fails gives no worker at all, so whatever keeps kernels from loading
is left for the worker to meet. Spark starts it, by ``spark.python.daemon.module``; see ``session``.

>>> callable(main)
True
"""

import gc
import logging
import sys

from ddflow.errors import DdflowError

LOG = logging.getLogger("ddflow")


def prepare() -> None:
    """Import what tasks import, and load the kernels.  About a second, once a machine ten or more; never fails."""
    try:
        import spark_bridge.tasks  # noqa: F401
        from ddflow.tools.warmup import warm

        warm()
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
        prepare()
    finally:
        sys.stdout = out
    manager()


if __name__ == "__main__":
    main()
