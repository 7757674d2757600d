"""Fill the cache of compiled kernels in a background process, started by `ddflow.kernels.cache`.

The process writes only the cache, and ends with the process that started it.
"""

from __future__ import annotations

import os
import sys

from ddflow.kernels import cache
from ddflow.kernels.compile import cache_directory
from ddflow.tools.warmup import compile_all_kernels


def main() -> None:
    """Fill the cache, unless another process is filling it."""
    os.nice(19)
    cache.exit_with_parent(sys.stdin)
    directory = cache_directory()
    if directory is not None:
        with cache.hold_fill_lock(directory) as ours:
            if ours:
                compile_all_kernels()


if __name__ == "__main__":
    main()
