"""The tensors of a case, the same for everybody. Needs numpy and ml_dtypes."""

import functools
import math

import ml_dtypes
import numpy as np

from . import gradients, reference

NUMPY_DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

# Decode reads K and V once: sets of this many bytes in all, used in turn, lie in no cache.
ROTATING_BYTES = 256e6


class Sets(list):
    """[(q, k, v)] of a case, (q, k, v, d_out) of a backward, and what must come out for the
    first."""

    def __init__(self, case, sets):
        super().__init__(sets)
        self._case = case

    @functools.cached_property
    def expected(self):
        """{(batch, query head): reference rows}, backward {(batch, kv head): gradients}, in double
        precision: slow, so made once for all who take part."""
        if self._case.backward:
            return gradients.expected_gradients(self._case, *self[0])
        q, k, v = self[0]
        pairs, rows = reference.checked_rows(self._case)
        group_size = self._case.num_heads_q // self._case.num_heads_kv
        found = {}
        for batch, head in pairs:
            keys, values = (x[batch, head // group_size].astype(float).tolist() for x in (k, v))
            found[batch, head] = [
                reference.attention_row(q[batch, head, row].astype(float).tolist(), keys, values,
                                        reference.visible_keys(self._case, row)) for row in rows]
        return found

    def error(self, output):
        """The largest normwise error of the first set's output, in the checked rows."""
        if self._case.backward:
            return gradients.gradient_error(self._case, self.expected, output)
        _, rows = reference.checked_rows(self._case)
        worst = 0.0
        for (batch, head), expected in self.expected.items():
            got = output[batch, head][rows]
            got = got.double().numpy() if hasattr(got, "double") else got.astype(float)
            worst = max(worst, reference.normwise_error(expected, got.tolist()))
        return worst


def make_sets(case, layout):
    """Sets, logically [B,H,S,D] over memory in `layout`, unless the case names one itself;
    several where tensors must come from memory."""
    random = np.random.default_rng(0)
    count = max(1, math.ceil(ROTATING_BYTES / case.traffic)) if case.traffic else 1
    sizes = ((case.num_heads_q, case.seqlen_q, case.head_dim_qk),
             (case.num_heads_kv, case.seqlen_kv, case.head_dim_qk),
             (case.num_heads_kv, case.seqlen_kv, case.head_dim_v))
    if case.backward:
        sizes += ((case.num_heads_q, case.seqlen_q, case.head_dim_v),)
    made = (case.layout or layout).lower()
    return Sets(case, [tuple(_tensor(random, case, made, *size) for size in sizes)
                       for _ in range(count)])


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
