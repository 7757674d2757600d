"""Compile pure functions on arrays with numba, which only this folder imports.

A kernel only computes. A kernel reads its input arrays, and writes and allocates only as its docstring states. A kernel
never raises, logs or opens a file. If a kernel fails, it returns a row number, and its caller writes the error message.
A kernel keeps no state and does not use Arrow.

Limits: compiled code checks neither bounds nor overflow, so callers check lengths and types before the call. A negative
index counts from the end of the array. A uint64 plus a signed literal is signed, so a hash needs ``np.uint64(...)``
literals. Modules import nothing of ddflow from outside this folder, because the kernel cache covers only this folder.

>>> from ddflow.kernels.pointer import mulhi
>>> int(mulhi(2**63, 6))
3
"""
