"""The arrays that kernels take and give, by the type of their elements: names for annotations, nothing that runs."""

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Narrow = np.ndarray[Any, np.dtype[np.int32]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
