"""Attention in float64, in the plainest NumPy: what the binding's results are held to.

Written from docs/semantics.md; shares nothing with the library.
"""

import numpy as np

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox(key, counter):
    """Philox4x32 of 7 rounds: four 32-bit words."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(7):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = ((p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF,
                          (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF)
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return c0, c1, c2, c3


def dropout_factors(shape, shifts, p, seed):
    """What each probability is multiplied by: 0, or one over the probability of keeping."""
    batch, heads, rows, keys = shape
    threshold = int(np.floor((1 - p) * 65536 + 0.5))
    factors = np.zeros(shape)
    for b, h, i, block in np.ndindex(batch, heads, rows, (keys + 7) // 8):
        position = (i + int(shifts[b])) & 0xFFFFFFFF
        words = philox((seed & 0xFFFFFFFF, seed >> 32), (block, position, b * heads + h, 0))
        for j in range(8 * block, min(8 * block + 8, keys)):
            draw = (words[(j & 7) >> 1] >> (16 * (j & 1))) & 0xFFFF
            factors[b, h, i, j] = 65536 / threshold if draw < threshold else 0.0
    return factors


def _shifts(batch, rows, keys, diagonal, seqlens_q, seqlens_kv):
    if diagonal is None or isinstance(diagonal, str) and diagonal == "top_left":
        return np.zeros(batch, np.int64)
    if isinstance(diagonal, str):
        len_q = np.full(batch, rows) if seqlens_q is None else np.asarray(seqlens_q)
        len_kv = np.full(batch, keys) if seqlens_kv is None else np.asarray(seqlens_kv)
        return (len_kv - len_q).astype(np.int64)
    return np.broadcast_to(np.asarray(diagonal, np.int64), batch)


def _visible(shape, shifts, options):
    batch, _, rows, keys = shape
    position = np.arange(rows)[None, :, None] + shifts[:, None, None]
    j = np.arange(keys)[None, None, :]
    left, right = options.get("window", (-1, -1))
    if options.get("is_causal"):
        right = 0
    seen = np.ones((batch, rows, keys), bool)
    if left >= 0:
        seen &= j >= position - left
    if right >= 0:
        seen &= j <= position + right
    if options.get("seqlens_kv") is not None:
        seen &= j < np.asarray(options["seqlens_kv"])[:, None, None]
    if options.get("segment_ids_q") is not None:
        seen &= (np.asarray(options["segment_ids_q"])[:, :, None]
                 == np.asarray(options["segment_ids_kv"])[:, None, :])
    seen = np.broadcast_to(seen[:, None], shape)
    if options.get("attn_mask") is not None:
        seen = seen & np.broadcast_to(options["attn_mask"], shape)
    return seen


def _edited(scaled, shifts, options):
    scores = scaled
    if options.get("softcap"):
        scores = options["softcap"] * np.tanh(scores / options["softcap"])
    if options.get("attn_bias") is not None:
        scores = scores + np.asarray(options["attn_bias"], np.float64)
    if options.get("alibi_slopes") is not None:
        rows, keys = scores.shape[2:]
        distance = np.abs(np.arange(rows)[None, :, None] + shifts[:, None, None]
                          - np.arange(keys)[None, None, :])
        slopes = np.asarray(options["alibi_slopes"], np.float64)
        slopes = np.broadcast_to(slopes, (scores.shape[0], scores.shape[1]))
        scores = scores - slopes[:, :, None, None] * distance[:, None]
    return scores


def _repeated(k, v, heads):
    group = heads // max(k.shape[1], 1)
    return np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)


def _softmax(scores, sink):
    """The probabilities, the sink's own, and lse; zeros and -inf in a row that sees nothing."""
    top = np.maximum(scores.max(-1, initial=-np.inf), sink)
    safe = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - safe[..., None])
    total = weights.sum(-1) + np.exp(sink - safe)
    with np.errstate(divide="ignore", invalid="ignore"):
        probs = np.where(total[..., None] > 0, weights / total[..., None], 0.0)
        sink_probs = np.where(total > 0, np.exp(sink - safe) / total, 0.0)
        lse = np.log(total) + safe
    return probs, sink_probs, lse


class _Forward:
    """Every intermediate value of a forward, as float64 [B,Hq,...]."""

    def __init__(self, q, k, v, options):
        self.q, self.k, self.v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
        self.options = options
        batch, heads, rows, depth = self.q.shape
        self.keys, self.values = _repeated(self.k, self.v, heads)
        shape = (batch, heads, rows, k.shape[2])
        self.shifts = _shifts(batch, rows, k.shape[2], options.get("diagonal"),
                              options.get("seqlens_q"), options.get("seqlens_kv"))
        scale = options.get("softmax_scale")
        self.scale = 1 / np.sqrt(depth) if scale is None else scale
        self.scaled = self.scale * np.einsum("bhqd,bhkd->bhqk", self.q, self.keys)
        scores = _edited(self.scaled, self.shifts, options)
        scores = np.where(_visible(shape, self.shifts, options), scores, -np.inf)
        sinks = options.get("sinks")
        sink = np.full(heads, -np.inf) if sinks is None else np.asarray(sinks, np.float64)
        sink = np.broadcast_to(sink[None, :, None], shape[:3])
        self.probs, self.sink_probs, self.lse = _softmax(scores, sink)
        self.past = np.zeros((batch, rows), bool)
        if options.get("seqlens_q") is not None:
            self.past = np.arange(rows)[None, :] >= np.asarray(options["seqlens_q"])[:, None]
        self.probs = np.where(self.past[:, None, :, None], 0.0, self.probs)
        self.sink_probs = np.where(self.past[:, None], 0.0, self.sink_probs)
        self.lse = np.where(self.past[:, None], -np.inf, self.lse)
        self.factors = np.ones(shape)
        if options.get("dropout_p"):
            self.factors = dropout_factors(shape, self.shifts, options["dropout_p"],
                                           options["seed"])
        self.out = np.einsum("bhqk,bhkd->bhqd", self.probs * self.factors, self.values)


def attention(q, k, v, **options):
    """out, lse and the probabilities (before dropout) of [B,H,S,D] arrays, in float64."""
    forward = _Forward(q, k, v, options)
    return forward.out, forward.lse, forward.probs


def _summed_to(array, shape):
    """The sum over the dimensions in which `shape` (of at most as many) is broadcast."""
    full = (1,) * (array.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i, n in enumerate(full) if n == 1 and array.shape[i] != 1)
    return array.sum(axes, keepdims=True).reshape(shape)


def gradients(d_out, q, k, v, d_lse=None, **options):
    """d_q, d_k, d_v, d_bias (of attn_bias's shape, else None) and d_sinks, in float64: the chain
    rule, one line a step of the forward, walked backwards."""
    f = _Forward(q, k, v, options)
    d_out = np.asarray(d_out).astype(np.float64)
    d_rows = np.zeros(f.lse.shape) if d_lse is None else np.asarray(d_lse, np.float64)
    d_rows = np.where(f.past[:, None], 0.0, d_rows)
    d_values = np.einsum("bhqk,bhqd->bhkd", f.probs * f.factors, d_out)
    d_probs = f.factors * np.einsum("bhqd,bhkd->bhqk", d_out, f.values)
    mean = (f.probs * d_probs).sum(-1)  # a sink's value is 0: it adds nothing to the mean
    d_scores = f.probs * (d_probs - mean[..., None] + d_rows[..., None])
    d_sinks = (f.sink_probs * (d_rows - mean)).sum((0, 2))
    d_scaled = d_scores
    if options.get("softcap"):
        d_scaled = d_scores * (1 - np.tanh(f.scaled / options["softcap"]) ** 2)
    d_q = f.scale * np.einsum("bhqk,bhkd->bhqd", d_scaled, f.keys)
    d_keys = f.scale * np.einsum("bhqk,bhqd->bhkd", d_scaled, f.q)
    batch, heads, n, _ = f.k.shape
    group = f.q.shape[1] // max(heads, 1)
    d_k = d_keys.reshape(batch, heads, group, n, -1).sum(2) if f.k.size else np.zeros(f.k.shape)
    d_v = d_values.reshape(batch, heads, group, n, -1).sum(2) if f.v.size else np.zeros(f.v.shape)
    bias = options.get("attn_bias")
    d_bias = None if bias is None else _summed_to(d_scores, np.shape(bias))
    return d_q, d_k, d_v, d_bias, None if options.get("sinks") is None else d_sinks
