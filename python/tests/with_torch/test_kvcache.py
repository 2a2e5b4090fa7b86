"""flash_attn_with_kvcache against attention computed by hand on the whole of each sequence."""

import math

import pytest
import torch

from regard.flash_attn import flash_attn_with_kvcache
from regard.torch import ArgumentError

BATCH, HEADS, HEADS_K, SIZE = 3, 4, 2, 32


def reference(q, k, v, causal, window, slopes=None):
    """One sequence, [positions, heads, head_dim], in float64."""
    q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(SIZE)
    distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        hidden |= distance > left
    if right >= 0:
        hidden |= distance < -right
    scores = scores.masked_fill(hidden, -math.inf)
    probs = torch.softmax(scores, -1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", probs, v), torch.logsumexp(scores, -1)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2),
                                              (torch.float16, 3e-3)])
@pytest.mark.parametrize("page_size, with_idx", [(None, False), (None, True), (1, False), (16, False),
                                                 (256, False)])
@pytest.mark.parametrize("new", [0, 1, 5])
@pytest.mark.parametrize("leftpad", [None, (0, 60, 77)])
@pytest.mark.parametrize("causal, window", [(False, (-1, -1)), (True, (-1, -1)), (True, (7, 0)),
                                            (False, (9, 3))])
def test_grid(dtype, tolerance, page_size, with_idx, new, leftpad, causal, window):
    torch.manual_seed(3)
    rows, seqlen_q = 256, max(new, 1)
    lengths = torch.tensor([0 if new else 1, 100, rows - new], dtype=torch.int32)
    pages = 1 if page_size is None else rows // page_size
    caches = BATCH + 2 if page_size is None else BATCH * pages + 3
    shape = (caches, rows if page_size is None else page_size, HEADS_K, SIZE)
    k_cache, v_cache = torch.randn(2, *shape).to(dtype)
    table = torch.randperm(caches)[:BATCH * pages].reshape(BATCH, pages).int()
    index = torch.tensor([4, 0, 2], dtype=torch.int32) if with_idx else None
    q = torch.randn(BATCH, seqlen_q, HEADS, SIZE).to(dtype)
    k, v = torch.randn(2, BATCH, new, HEADS_K, SIZE).to(dtype)

    def whole(cache, b, added):
        if page_size is not None:
            kept = cache[table[b].long()].reshape(-1, HEADS_K, SIZE)
        else:
            kept = cache[b if index is None else int(index[b])]
        return torch.cat([kept[0 if leftpad is None else leftpad[b]:lengths[b]], added[b]])

    sequences = [(whole(k_cache, b, k), whole(v_cache, b, v)) for b in range(BATCH)]
    out, lse = flash_attn_with_kvcache(
        q, k_cache, v_cache, *((k, v) if new else ()), cache_seqlens=lengths, cache_batch_idx=index,
        cache_leftpad=None if leftpad is None else torch.tensor(leftpad, dtype=torch.int32),
        block_table=None if page_size is None else table, causal=causal, window_size=window,
        return_softmax_lse=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    nothing = torch.zeros(BATCH, 0, HEADS_K, SIZE, dtype=dtype)
    lengths += new
    for b, (keys, values) in enumerate(sequences):
        expected, expected_lse = reference(q[b], keys, values, causal, window)
        torch.testing.assert_close(out[b].double(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse[b].double(), expected_lse, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole(k_cache, b, nothing), keys, rtol=0, atol=0)
        torch.testing.assert_close(whole(v_cache, b, nothing), values, rtol=0, atol=0)


def call(**changes):
    tensors = dict(q=torch.ones(2, 1, 4, 8), k_cache=torch.zeros(2, 16, 2, 8),
                   v_cache=torch.zeros(2, 16, 2, 8))
    return flash_attn_with_kvcache(**{**tensors, **changes})


def test_an_int_is_the_length_of_every_sequence_and_none_the_whole_cache():
    cache = torch.randn(2, 16, 2, 8)
    torch.testing.assert_close(call(v_cache=cache, cache_seqlens=16), call(v_cache=cache),
                               rtol=0, atol=0)


def test_alibi():
    torch.manual_seed(1)
    slopes = torch.rand(4)
    q, cache = torch.randn(1, 3, 4, SIZE), torch.randn(1, 16, 2, SIZE)
    out = flash_attn_with_kvcache(q, cache, cache, cache_seqlens=11, causal=True, alibi_slopes=slopes)
    expected, _ = reference(q[0], cache[0, :11], cache[0, :11], True, (-1, -1), slopes)
    torch.testing.assert_close(out[0].double(), expected, rtol=1e-5, atol=1e-5)


NEW = torch.ones(2, 1, 2, 8)


@pytest.mark.parametrize("changes, match", [
    (dict(rotary_cos=torch.ones(16, 4)), "rotary_sin .None. must be given"),
    (dict(rotary_cos=torch.ones(16, 4), rotary_sin=torch.ones(16, 4)), "k .None. must be given"),
    (dict(k=NEW, v=NEW, cache_seqlens=3, rotary_cos=torch.ones(2, 4), rotary_sin=torch.ones(2, 4)),
     "positions of rotary_cos .2."),
    (dict(cache_leftpad=torch.zeros(2)), "cache_leftpad .* int32"),
    (dict(cache_seqlens=5, cache_leftpad=torch.tensor([2, 6], dtype=torch.int32)),
     "cache_leftpad.1. .6., expected 0 to 5"),
    (dict(k=NEW, v=NEW), "cache_seqlens"),
    (dict(k=NEW, cache_seqlens=3), "k and v must both"),
    (dict(k=NEW, v=NEW, cache_seqlens=16), "seqlens_kv"),
    (dict(k=NEW.half(), v=NEW, cache_seqlens=3), "dtype of k"),
    (dict(q=torch.ones(2, 4, 8)), "4 dimensions"),
    (dict(cache_seqlens=torch.ones(2)), "cache_seqlens .* int32"),
    (dict(block_table=torch.zeros(2, 1, dtype=torch.int32), cache_seqlens=17), "seqlens_kv"),
    (dict(block_table=torch.full((2, 1), 9, dtype=torch.int32), cache_seqlens=3), "page_table"),
    (dict(k=NEW, v=NEW, cache_seqlens=3, block_table=torch.zeros(2, 1, dtype=torch.int32)),
     "append to page 0"),
])
def test_bad_input_is_refused_and_nothing_is_written(changes, match):
    k_cache, v_cache = torch.zeros(2, 2, 16, 2, 8)
    with pytest.raises(ArgumentError, match=match):
        call(k_cache=k_cache, v_cache=v_cache, **changes)
    assert not k_cache.any() and not v_cache.any()


def rotated(x, cos, sin, first, advances, interleaved):
    """Rows [batch, seqlen, heads, head_dim] at first + i, in float64."""
    half = cos.shape[1]
    at = torch.tensor(first)[:, None] + torch.arange(x.shape[1]) * int(advances)
    c, s = cos.double()[at][:, :, None], sin.double()[at][:, :, None]
    out = x.double().clone()
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (
        slice(0, half), slice(half, 2 * half))
    a, b = (x.double()[..., pair] for pair in pairs)
    out[..., pairs[0]], out[..., pairs[1]] = a * c - b * s, b * c + a * s
    return out.to(x.dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_fraction", [0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary(dtype, rotary_fraction, interleaved, causal):
    torch.manual_seed(2)
    q, k = torch.randn(2, 3, 4, SIZE, dtype=dtype), torch.randn(2, 3, 2, SIZE, dtype=dtype)
    cache = torch.randn(2, 16, 2, SIZE, dtype=dtype)
    angles = torch.rand(16, int(rotary_fraction * SIZE) // 2) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    lengths = [9, 2]
    turned_q = rotated(q, cos, sin, lengths, causal, interleaved)
    turned_k = rotated(k, cos, sin, lengths, True, interleaved)
    options = dict(cache_seqlens=torch.tensor(lengths, dtype=torch.int32), causal=causal)
    caches = [cache.clone() for _ in range(4)]
    out = flash_attn_with_kvcache(q, caches[0], caches[1], k, k, rotary_cos=cos, rotary_sin=sin,
                                  rotary_interleaved=interleaved, **options)
    expected = flash_attn_with_kvcache(turned_q, caches[2], caches[3], turned_k, k, **options)
    near = dict(rtol=1e-5, atol=1e-5) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(caches[0], caches[2], **near)
    torch.testing.assert_close(out, expected, **near)
    assert torch.equal(caches[1], caches[3])
