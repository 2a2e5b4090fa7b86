"""The truth: softmax(scale * q k^T) v of single rows, in double precision, with plain loops."""

import math
from operator import mul


def attention_row(query, keys, values, visible):
    """The output row of `query` over the first `visible` of `keys` and `values` (lists of rows);
    zeros where none is visible. The scale is 1/sqrt(head_dim)."""
    scale = 1 / math.sqrt(len(query))
    scores = [scale * sum(map(mul, query, key)) for key in keys[:visible]]
    out = [0.0] * len(values[0])
    if not scores:
        return out
    row_max = max(scores)
    probs = [math.exp(score - row_max) for score in scores]
    row_sum = sum(probs)
    for prob, value in zip(probs, values):
        out = [o + prob * v for o, v in zip(out, value)]
    return [o / row_sum for o in out]


def visible_keys(case, row):
    """How many keys query `row` sees, from the first on."""
    if not case.causal:
        return case.seqlen_kv
    return min(max(row + 1 + case.diagonal_offset, 0), case.seqlen_kv)


def checked_rows(case):
    """(batch, query head, rows) that a result is held to: the first and the last of each extent."""
    rows = sorted({0, case.seqlen_q // 3, case.seqlen_q - 1})
    return sorted({(0, case.num_heads_q - 1), (case.batch - 1, 0)}), rows


# Relative to the largest reference value. f32 leaves room for long sums, bf16 for probabilities and
# outputs rounded to bf16; a wrong mask or head is off by tenths.
TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "bf16": 2e-2, "f16": 4e-3}
TOLERANCE_OF = {"ggml": 0.1}  # it adds up values in f16: 8e-3 at 4,096 keys, 5e-2 at 32,768


def normwise_error(expected, got):
    """max |got - expected| / max |expected| over rows; infinite where `got` is not finite."""
    largest = max((abs(x) for row in expected for x in row), default=0.0)
    worst = 0.0
    for row, other in zip(expected, got, strict=True):
        for x, y in zip(row, other, strict=True):
            if not math.isfinite(y):
                return math.inf
            worst = max(worst, abs(x - y))
    return worst / largest if largest else worst
