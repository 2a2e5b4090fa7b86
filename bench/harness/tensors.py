"""The tensors of a case, the same for everybody. Needs numpy and ml_dtypes."""

import math

import ml_dtypes
import numpy as np

NUMPY_DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

# Decode reads K and V once: sets of this many bytes in all, used in turn, lie in no cache.
ROTATING_BYTES = 256e6


def make_sets(case, layout):
    """[(q, k, v)], logically [B,H,S,D] over memory in `layout`, unless the case names one itself;
    several where K and V must come from memory."""
    random = np.random.default_rng(0)
    count = max(1, math.ceil(ROTATING_BYTES / case.kv_bytes)) if case.decode else 1
    sizes = ((case.num_heads_q, case.seqlen_q, case.head_dim_qk),
             (case.num_heads_kv, case.seqlen_kv, case.head_dim_qk),
             (case.num_heads_kv, case.seqlen_kv, case.head_dim_v))
    made = (case.layout or layout).lower()
    return [tuple(_tensor(random, case, made, *size) for size in sizes) for _ in range(count)]


def _tensor(random, case, layout, heads, seqlen, head_dim):
    order = (heads, seqlen) if layout == "bhsd" else (seqlen, heads)
    values = aligned_empty((case.batch, *order, head_dim), NUMPY_DTYPES[case.dtype])
    for sequence in values:  # one at a time: a long cache exists once, not also in f32
        sequence[...] = random.standard_normal(sequence.shape, dtype=np.float32)
    return values if layout == "bhsd" else values.transpose(0, 2, 1, 3)


def aligned_empty(shape, dtype):
    """An array at a multiple of 64 bytes, where a library's own allocator puts a cache; NumPy's
    lie at 16 from one, so that every second vector of 32 bytes straddles two cache lines."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + 63, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first:first + size].view(dtype).reshape(shape)


def contiguous(array, dtype=None):
    """`array` in its own order of dimensions; itself where it lies so, else an aligned copy."""
    dtype = np.dtype(dtype or array.dtype)
    if array.flags.c_contiguous and array.dtype == dtype:
        return array
    made = aligned_empty(array.shape, dtype)
    made[...] = array
    return made


def visibility(case):
    """bool [Sq,Skv], true = may attend: for libraries without a bottom-right diagonal."""
    rows = np.arange(case.seqlen_q)[:, None] + case.diagonal_offset
    return np.arange(case.seqlen_kv)[None, :] <= rows
