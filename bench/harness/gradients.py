"""The truth of a backward: gradients of one kv head in double precision, a block of rows at a time,
for a loss whose gradient by the output is `d_out`. Needs numpy."""

import math

import numpy as np

ROWS = 512  # of the score matrix at once


def head_gradients(q, k, v, d_out, first_key_row):
    """(d_q, d_k, d_v) of the query heads [G,Sq,D] that share k and v [Skv,D]; query i sees the
    first i + first_key_row keys, or all where that is None. The scale is 1/sqrt(head_dim)."""
    scale = 1 / math.sqrt(q.shape[-1])
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    keys = np.arange(k.shape[0])
    for head in range(q.shape[0]):
        for begin in range(0, q.shape[1], ROWS):
            rows = slice(begin, min(begin + ROWS, q.shape[1]))
            scores = scale * (q[head, rows] @ k.T)
            if first_key_row is not None:
                seen = np.arange(rows.start, rows.stop)[:, None] + first_key_row
                scores = np.where(keys[None, :] < seen, scores, -np.inf)
            row_max = scores.max(axis=1, keepdims=True)
            probs = np.exp(scores - np.where(np.isfinite(row_max), row_max, 0.0))
            row_sum = probs.sum(axis=1, keepdims=True)
            probs = np.divide(probs, row_sum, out=np.zeros_like(probs), where=row_sum > 0)
            d_rows = d_out[head, rows]
            d_probs = d_rows @ v.T
            delta = (probs * d_probs).sum(axis=1, keepdims=True)
            d_scores = scale * probs * (d_probs - delta)
            d_v += probs.T @ d_rows
            d_k += d_scores.T @ q[head, rows]
            d_q[head, rows] = d_scores @ k
    return d_q, d_k, d_v


def expected_gradients(case, q, k, v, d_out):
    """{(batch, kv head): head_gradients()} of the first and the last."""
    group = case.num_heads_q // case.num_heads_kv
    first_key_row = case.diagonal_offset + 1 if case.causal else None
    found = {}
    for batch, head in sorted({(0, case.num_heads_kv - 1), (case.batch - 1, 0)}):
        heads = slice(head * group, (head + 1) * group)
        of_q, of_out = (x[batch, heads].astype(float) for x in (q, d_out))
        of_k, of_v = (x[batch, head].astype(float) for x in (k, v))
        found[batch, head] = head_gradients(of_q, of_k, of_v, of_out, first_key_row)
    return found


def gradient_error(case, expected, gradients):
    """The largest normwise error of d_q, d_k and d_v, in the checked heads."""
    group = case.num_heads_q // case.num_heads_kv
    worst = 0.0
    for (batch, head), truth in expected.items():
        heads = slice(head * group, (head + 1) * group)
        for wanted, got, index in zip(truth, gradients, (heads, head, head), strict=True):
            difference = np.abs(as_doubles(got[batch, index]) - wanted).max()
            largest = np.abs(wanted).max()
            if not np.isfinite(difference):
                return math.inf
            worst = max(worst, float(difference / largest if largest else difference))
    return worst


def as_doubles(array):
    return array.double().numpy() if hasattr(array, "double") else array.astype(float)
