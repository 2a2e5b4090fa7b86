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


def attention(q, k, v, **options):
    """out, lse and the probabilities (before dropout) of [B,H,S,D] arrays, in float64."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    batch, heads, rows, depth = q.shape
    shape = (batch, heads, rows, k.shape[2])
    shifts = _shifts(batch, rows, k.shape[2], options.get("diagonal"), options.get("seqlens_q"),
                     options.get("seqlens_kv"))
    scale = options.get("softmax_scale")
    scale = 1 / np.sqrt(depth) if scale is None else scale
    scores = _edited(scale * np.einsum("bhqd,bhkd->bhqk", q, k), shifts, options)
    scores = np.where(_visible(shape, shifts, options), scores, -np.inf)
    sinks = options.get("sinks")
    sink = np.full(heads, -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    sink = np.broadcast_to(sink[None, :, None], shape[:3])
    top = np.maximum(scores.max(-1, initial=-np.inf), sink)
    safe = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - safe[..., None])
    total = weights.sum(-1) + np.exp(sink - safe)
    with np.errstate(divide="ignore", invalid="ignore"):
        probs = np.where(total[..., None] > 0, weights / total[..., None], 0.0)
        lse = np.log(total) + safe
    if options.get("seqlens_q") is not None:
        past = np.arange(rows)[None, :] >= np.asarray(options["seqlens_q"])[:, None]
        probs = np.where(past[:, None, :, None], 0.0, probs)
        lse = np.where(past[:, None], -np.inf, lse)
    kept = probs
    if options.get("dropout_p"):
        kept = probs * dropout_factors(shape, shifts, options["dropout_p"], options["seed"])
    return np.einsum("bhqk,bhkd->bhqd", kept, v), lse, probs
