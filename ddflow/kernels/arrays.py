"""The arrays that kernels take and give, by the type of their elements and the number of their dimensions.

Guarantees: a kernel is compiled for the types that its annotations say (`compile.argument_types`).
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
