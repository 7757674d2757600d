"""Name the array types of kernel arguments, by element type and number of dimensions.

`compile.argument_types` derives the compiled signature of a kernel from these annotations, so kernels can be compiled
ahead, without data. An array has one dimension unless its name ends in ``2d`` or ``3d``.
"""

from typing import Annotated, Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Narrow = np.ndarray[Any, np.dtype[np.int32]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

Words2d = Annotated[Words, 2]
Words3d = Annotated[Words, 3]
Ints2d = Annotated[Ints, 2]
Narrow2d = Annotated[Narrow, 2]
Flags2d = Annotated[Flags, 2]
