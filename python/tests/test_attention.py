"""Every option of regard.attention against the float64 reference."""

import numpy as np
import pytest
from reference import attention as reference

import regard

BACKENDS = [b["backend"] for b in regard.devices() if b["built"] and b["device"] == "cpu"]
# Of the largest value; of 16 bits twice the unit roundoff.
TOLERANCE = {"float64": 1e-12, "float32": 5e-6, "float16": 2**-10, "bfloat16": 2**-7}
# Of the root mean square in 16 bits, in units of roundoff times that of the result: rounding to nearest is 0.58 at most,
# truncation 0.76 and more. FLASH may round probabilities of bf16, too, which together is 0.82.
RMS_TOLERANCE = {"float16": 0.7, "bfloat16": 0.9}


def make(b=2, hq=4, hkv=2, sq=9, skv=13, d=16, dv=None, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(b, hq, sq, d), (b, hkv, skv, d), (b, hkv, skv, dv or d)]
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


RNG = np.random.default_rng(7)
LENS_Q, LENS_KV = np.array([9, 4], np.int32), np.array([13, 6], np.int32)
FEATURES = {
    "plain": {},
    "causal_top_left": dict(is_causal=True, diagonal="top_left"),
    "causal_bottom_right": dict(is_causal=True, diagonal="bottom_right"),
    "offset": dict(is_causal=True, diagonal=2),
    "offset_negative": dict(is_causal=True, diagonal=-3),
    "offset_per_sequence": dict(is_causal=True, diagonal=np.array([1, 5])),
    "window": dict(window=(3, 1), diagonal="top_left"),
    "window_list_causal": dict(window=[2, 0], diagonal="bottom_right"),
    "mask": dict(attn_mask=RNG.random((2, 4, 9, 13)) < 0.7),
    "mask_broadcast": dict(attn_mask=RNG.random((9, 13)) < 0.5),
    "mask_keys": dict(attn_mask=RNG.random(13) < 0.5),
    "mask_and_causal": dict(attn_mask=RNG.random((2, 1, 1, 13)) < 0.7, is_causal=True,
                            diagonal="top_left"),
    "dead_rows": dict(attn_mask=np.arange(9)[:, None] % 3 != np.zeros(13)),
    "dead_rows_sink": dict(attn_mask=np.zeros((9, 13), bool), sinks=np.ones(4, np.float32)),
    "bias": dict(attn_bias=RNG.standard_normal((1, 4, 9, 13)).astype(np.float32)),
    "bias_f64": dict(attn_bias=RNG.standard_normal((4, 1, 13))),
    "alibi": dict(alibi_slopes=np.array([0.5, 0.25, 0.1, 0.0], np.float32),
                  diagonal="bottom_right"),
    "alibi_per_batch": dict(alibi_slopes=RNG.random((2, 4)), diagonal="top_left"),
    "softcap": dict(softcap=2.0),
    "scale": dict(softmax_scale=-0.3),
    "sinks": dict(sinks=[0.5, -1.0, 2.0, float("-inf")]),
    "lens": dict(seqlens_q=LENS_Q, seqlens_kv=LENS_KV),
    "lens_int64": dict(seqlens_kv=LENS_KV.astype(np.int64), is_causal=True, seqlens_q=[9, 4],
                       diagonal="bottom_right"),
    "segments": dict(segment_ids_q=RNG.integers(0, 2, (2, 9)),
                     segment_ids_kv=RNG.integers(0, 2, (2, 13)).astype(np.int32)),
    "dropout": dict(dropout_p=0.25, seed=2**63 + 12345),
    "everything": dict(is_causal=True, diagonal="bottom_right", window=(7, -1), softcap=3.0,
                       attn_mask=RNG.random((2, 1, 9, 13)) < 0.8, softmax_scale=0.4,
                       attn_bias=RNG.standard_normal((9, 13)).astype(np.float32),
                       sinks=np.zeros(4), seqlens_q=LENS_Q, seqlens_kv=LENS_KV,
                       dropout_p=0.1, seed=3),
}


def check(q, k, v, dtype="float32", **options):
    """The call's out and lse against the reference, relative to the largest value of v."""
    extra = {key: options.pop(key) for key in ("backends",) if key in options}
    out, lse = regard.attention(q, k, v, return_lse=True, **extra, **options)
    expected, expected_lse, _ = reference(q, k, v, **options)
    assert out.dtype == q.dtype and out.shape == expected.shape
    scale = max(1.0, np.abs(v.astype(np.float64)).max(initial=0))
    difference = np.abs(out.astype(np.float64) - expected).max(initial=0)
    assert difference <= TOLERANCE[dtype] * scale
    if dtype in RMS_TOLERANCE and out.size > 0:
        error = np.sqrt(np.mean((out.astype(np.float64) - expected) ** 2))
        unit = TOLERANCE[dtype] / 2 * np.sqrt(np.mean(expected**2))
        assert error <= RMS_TOLERANCE[dtype] * unit + 5e-6
    assert lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    exact = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(lse, expected_lse, atol=exact, rtol=exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FEATURES)
def test_feature(name, backend):
    options = FEATURES[name]
    q, k, v = make()
    selection = regard.explain(q, k, v, backends=backend, return_lse=True, **options)
    assert selection.ok, "; ".join(map(str, selection.refusals))  # none is expected here
    check(q, k, v, backends=backend, **options)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_dtype(name, dtype):
    if dtype == "bfloat16":
        dtype_object = pytest.importorskip("ml_dtypes").bfloat16
    else:
        dtype_object = dtype
    q, k, v = make(dtype=dtype_object)
    check(q, k, v, dtype=dtype, **FEATURES[name])


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 3)])
def test_grouped_heads_and_head_dims_that_differ(heads):
    hq, hkv = heads
    check(*make(hq=hq, hkv=hkv, d=24, dv=40))


@pytest.mark.parametrize("shape", [dict(b=0), dict(sq=0), dict(skv=0), dict(hq=0, hkv=1),
                                   dict(b=1, hq=1, hkv=1, sq=1, skv=1, d=1)])
def test_empty_and_smallest_sizes(shape):
    q, k, v = make(**shape)
    check(q, k, v)


def test_lengths_of_no_sequences():
    q, k, v = make(b=0)
    out = regard.attention(q, k, v, seqlens_q=[], seqlens_kv=[], diagonal=[], is_causal=True)
    assert out.shape == q.shape
    with pytest.raises(TypeError, match=r"dtype of seqlens_kv \(float64 \(0\)\) must be"):
        regard.attention(q, k, v, seqlens_kv=np.zeros(0))


def test_no_keys_but_a_sink():
    q, k, v = make(skv=0)
    out, lse = regard.attention(q, k, v, sinks=np.arange(4.0), return_lse=True)
    assert not out.any()
    assert np.array_equal(lse, np.broadcast_to(np.arange(4.0)[None, :, None], lse.shape))


@pytest.mark.parametrize("kind", ["scaled", "edited", "probs"])
def test_scores(kind):
    q, k, v = make()
    options = dict(is_causal=True, diagonal="bottom_right", softcap=1.5)
    out, lse, scores = regard.attention(q, k, v, return_lse=True, return_scores=kind, **options)
    expected, expected_lse, probs = reference(q, k, v, **options)
    assert scores.shape == probs.shape
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5)
    hidden = probs == 0
    if kind == "probs":
        np.testing.assert_allclose(scores, probs, atol=1e-6)
    elif kind == "edited":
        assert np.isneginf(scores[hidden]).all() and np.isfinite(scores[~hidden]).all()
    else:
        assert not scores[hidden].any()
    only_scores = regard.attention(q, k, v, return_scores=kind, **options)
    assert len(only_scores) == 2 and np.array_equal(only_scores[1], scores)


def test_dropout_is_the_seeds_alone():
    q, k, v = make(sq=64, skv=64, b=1)
    first = regard.attention(q, k, v, dropout_p=0.5, seed=1)
    again = regard.attention(q, k, v, dropout_p=0.5, seed=1)
    other = regard.attention(q, k, v, dropout_p=0.5, seed=2)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    fresh = [regard.attention(q, k, v, dropout_p=0.5) for _ in range(2)]
    assert not np.array_equal(*fresh)
    assert np.array_equal(regard.attention(q, k, v, dropout_p=0.0, seed=9),
                          regard.attention(q, k, v))


def test_values_behind_a_mask_never_reach_a_result():
    q, k, v = make()
    mask = np.ones(13, bool)
    mask[5:] = False
    expected = regard.attention(q, k, v, attn_mask=mask)
    k[:, :, 5:], v[:, :, 5:] = np.inf, np.nan
    assert np.array_equal(regard.attention(q, k, v, attn_mask=mask), expected)


def test_a_float_mask_is_a_bias():
    q, k, v = make()
    bias = np.where(RNG.random((9, 13)) < 0.5, 0, -np.inf).astype(np.float32)
    assert np.array_equal(regard.attention(q, k, v, attn_mask=bias),
                          regard.attention(q, k, v, attn_bias=bias))


def test_merge_states_puts_split_keys_together():
    q, k, v = make(skv=40)
    parts = [regard.attention(q, k[:, :, i:j], v[:, :, i:j], return_lse=True)
             for i, j in [(0, 7), (7, 32), (32, 40)]]
    out, lse = regard.merge_states(parts)
    expected, expected_lse, _ = reference(q, k, v)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5)
    turned = [(np.ascontiguousarray(o.swapaxes(1, 2)), s) for o, s in parts]
    out_bshd, _ = regard.merge_states(turned, layout="BSHD")
    assert np.array_equal(out_bshd.swapaxes(1, 2), out)
    with pytest.raises(ValueError, match="states"):
        regard.merge_states([])
    with pytest.raises(TypeError, match=r"states\[0\]"):
        regard.merge_states([parts[0][0]])
