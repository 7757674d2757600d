"""Kernels: pure functions on arrays, compiled by numba; the only place where numba is imported.

Invariant: a kernel computes. It reads the arrays it is given, writes only those its docstring says it owns or fills,
allocates no more than the bound stated there, and never raises, logs, or touches a file; where it can fail it returns a
row number, and the caller words the error. Out-of-bounds reads are silent in compiled code, ``a[i - 1]`` wraps at 0,
uint64 with a signed literal turns signed, and overflow wraps; so literals in hash code are ``np.uint64(...)``, shells
check lengths and types before the call, and the tests run every kernel three ways: compiled, compiled with bounds
checks, and as plain Python.

Modules here import nothing of ddflow outside of this package: numba freezes a global into the compiled code, and the
cache (``compile.py``, ``cache.py``) knows only these sources.  They do not hold state, choose policies or know Arrow.

>>> from ddflow.kernels.pointer import mulhi
>>> int(mulhi(2**63, 6))
3
"""
