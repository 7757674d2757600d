"""Compile pure functions on arrays with numba; no other folder imports numba.

A kernel does nothing but compute. It reads its input arrays, and writes and allocates only as its docstring states. It
never raises, logs or opens a file; on failure it returns a row number, and the caller words the error. It keeps no
state, makes no policy decisions, and does not use Arrow.

Limits: compiled code checks neither bounds nor overflow, so callers check lengths and types first. A negative index
wraps, and uint64 with a signed literal becomes signed, so hash code writes ``np.uint64(...)``. Modules import nothing
of ddflow outside this folder, because the kernel cache covers only these sources.

>>> from ddflow.kernels.pointer import mulhi
>>> int(mulhi(2**63, 6))
3
"""
