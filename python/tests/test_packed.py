"""Packed sequences: regard.attention with cu_seqlens, against each sequence alone."""

import numpy as np
import pytest
from reference import attention as reference
from reference import gradients as reference_gradients

import regard

BACKENDS = [b["backend"] for b in regard.devices() if b["built"] and b["device"] == "cpu"]
LENS_Q, LENS_KV = [5, 0, 9, 1, 3], [7, 4, 9, 0, 20]


def starts(lengths, dtype=np.int32):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


STARTS_Q, STARTS_KV = starts(LENS_Q), starts(LENS_KV)
PACKED = dict(cu_seqlens_q=STARTS_Q, cu_seqlens_kv=STARTS_KV)


def make(hq=4, hkv=2, d=16, dv=24, past=0, seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    shapes = [(sum(LENS_Q) + past, hq, d), (sum(LENS_KV) + past, hkv, d),
              (sum(LENS_KV) + past, hkv, dv)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def alone(array, at, n):
    """Sequence n of a packed array as [1, heads, positions, head_dim]."""
    return array[at[n]:at[n + 1]].transpose(1, 0, 2)[None]


def packed_rows(arrays):
    return np.concatenate([array[0].transpose(1, 0, 2) for array in arrays])


RNG = np.random.default_rng(3)
SEGMENTS = RNG.integers(0, 2, sum(LENS_Q)), RNG.integers(0, 2, sum(LENS_KV))
FEATURES = {
    "plain": {},
    "causal_top_left": dict(is_causal=True, diagonal="top_left"),
    "causal_bottom_right": dict(is_causal=True, diagonal="bottom_right"),
    "window": dict(window=(3, 1), diagonal="bottom_right"),
    "softcap": dict(softcap=2.0),
    "alibi": dict(alibi_slopes=[0.5, 0.25, 0.1, 0.0], diagonal="bottom_right"),
    "sinks": dict(sinks=[0.5, -1.0, 2.0, 0.0]),
    "scale": dict(softmax_scale=-0.3),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FEATURES)
def test_each_sequence_has_the_bits_that_it_has_alone(name, backend):
    q, k, v = make()
    out, lse = regard.attention(q, k, v, backends=backend, return_lse=True, **PACKED,
                                **FEATURES[name])
    assert out.shape == (q.shape[0], 4, 24) and lse.shape == (4, q.shape[0])
    for n in range(len(LENS_Q)):
        rows = slice(STARTS_Q[n], STARTS_Q[n + 1])
        one = [alone(q, STARTS_Q, n), alone(k, STARTS_KV, n), alone(v, STARTS_KV, n)]
        expected, expected_lse = regard.attention(*one, backends=backend, return_lse=True,
                                                  **FEATURES[name])
        assert np.array_equal(out[rows].transpose(1, 0, 2), expected[0])
        assert np.array_equal(lse[:, rows], expected_lse[0])
        exact, _, _ = reference(*one, **FEATURES[name])
        np.testing.assert_allclose(out[rows].transpose(1, 0, 2), exact[0], atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FEATURES)
def test_gradients(name, backend):
    q, k, v = make()
    options = {**PACKED, **FEATURES[name]}
    out, lse, saved = regard.attention(q, k, v, backends=backend, return_lse=True,
                                       return_saved=True, **options)
    rng = np.random.default_rng(1)
    d_out, d_lse = (rng.standard_normal(x.shape).astype(np.float32) for x in (out, lse))
    grads = regard.attention_backward(d_out, q, k, v, out, saved, d_lse=d_lse, **options)
    expected = []
    for n in range(len(LENS_Q)):
        rows = slice(STARTS_Q[n], STARTS_Q[n + 1])
        one = [alone(q, STARTS_Q, n), alone(k, STARTS_KV, n), alone(v, STARTS_KV, n)]
        expected.append(reference_gradients(alone(d_out, STARTS_Q, n), *one, d_lse[None, :, rows],
                                            **FEATURES[name]))
    for at, got in enumerate((grads.d_q, grads.d_k, grads.d_v)):
        np.testing.assert_allclose(got, packed_rows([e[at] for e in expected]), atol=2e-4)
    if "sinks" in options:
        np.testing.assert_allclose(grads.d_sinks, sum(e[4] for e in expected), atol=2e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_masks_and_biases_are_those_of_the_padded_call(backend):
    q, k, v = make()
    rows, keys = max(LENS_Q), max(LENS_KV)
    padded = [np.zeros((5, n, *x.shape[1:]), np.float32) for x, n in
              ((q, rows), (k, keys), (v, keys))]
    for n in range(5):
        for target, x, at in zip(padded, (q, k, v), (STARTS_Q, STARTS_KV, STARTS_KV), strict=True):
            target[n, :at[n + 1] - at[n]] = x[at[n]:at[n + 1]]
    rng = np.random.default_rng(2)
    options = dict(backends=backend, dropout_p=0.25, seed=5,
                   attn_mask=rng.random((5, 1, rows, keys)) < 0.8,
                   attn_bias=rng.standard_normal((1, 4, rows, keys)).astype(np.float32))
    out = regard.attention(q, k, v, **PACKED, **options)
    expected = regard.attention(*padded, layout="BSHD", seqlens_q=LENS_Q, seqlens_kv=LENS_KV,
                                **options)
    for n, length in enumerate(LENS_Q):
        assert np.array_equal(out[STARTS_Q[n]:STARTS_Q[n + 1]], expected[n, :length])


def test_segments_are_given_for_each_row():
    q, k, v = make()
    options = dict(segment_ids_q=SEGMENTS[0], segment_ids_kv=SEGMENTS[1])
    out = regard.attention(q, k, v, **PACKED, **options)
    for n in range(len(LENS_Q)):
        rows, keys = (slice(at[n], at[n + 1]) for at in (STARTS_Q, STARTS_KV))
        exact, _, _ = reference(alone(q, STARTS_Q, n), alone(k, STARTS_KV, n),
                                alone(v, STARTS_KV, n), segment_ids_q=SEGMENTS[0][None, rows],
                                segment_ids_kv=SEGMENTS[1][None, keys])
        np.testing.assert_allclose(out[rows].transpose(1, 0, 2), exact[0], atol=2e-5)


@pytest.mark.parametrize("given", [STARTS_Q.tolist(), STARTS_Q.astype(np.int64),
                                   np.repeat(STARTS_Q, 2)[::2], STARTS_Q[::-1].copy()[::-1]])
def test_starts_of_any_kind(given):
    q, k, v = make()
    expected = regard.attention(q, k, v, **PACKED)
    out = regard.attention(q, k, v, cu_seqlens_q=given, cu_seqlens_kv=STARTS_KV, max_seqlen_q=9,
                           max_seqlen_kv=50)
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_rows_past_the_last_sequence_are_zeros():
    q, k, v = make(past=4)
    q[-4:] = k[-4:] = v[-4:] = np.nan
    out, lse, saved = regard.attention(q, k, v, return_lse=True, return_saved=True, **PACKED)
    assert np.isfinite(out).all() and not out[-4:].any() and (lse[:, -4:] == -np.inf).all()
    d_out = np.ones_like(out)
    d_out[-4:] = np.nan
    grads = regard.attention_backward(d_out, q, k, v, out, saved, **PACKED)
    for grad in (grads.d_q, grads.d_k, grads.d_v):
        assert np.isfinite(grad).all() and not grad[-4:].any()


def test_strides_out_and_other_types():
    q, k, v = make(past=2)
    expected = regard.attention(q, k, v, **PACKED)
    heads_first = [np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2) for x in (q, k, v)]
    assert np.array_equal(regard.attention(*heads_first, **PACKED), expected)
    out = np.full_like(expected, np.nan)
    assert regard.attention(q, k, v, out=out, **PACKED) is out
    assert np.array_equal(out, expected)
    half = [x.astype(np.float16) for x in (q, k, v)]
    assert regard.attention(*half, **PACKED).dtype == np.float16


def test_explain_plans_for_the_longest_sequence():
    q, k, v = make()
    selection = regard.explain(q, k, v, **PACKED)
    assert selection.ok
    words = selection.to_dict()["case"]
    assert "sq9" in words and "skv20" in words
    shorter = regard.explain(q, k, v, max_seqlen_q=12, max_seqlen_kv=30, **PACKED)
    assert "sq12" in shorter.to_dict()["case"] and "skv30" in shorter.to_dict()["case"]


def test_a_saved_lse_takes_the_place_of_the_plan():
    q, k, v = make()
    out, lse, saved = regard.attention(q, k, v, return_lse=True, return_saved=True, **PACKED)
    d_out = np.ones_like(out)
    expected = regard.attention_backward(d_out, q, k, v, out, saved, **PACKED)
    got = regard.attention_backward(d_out, q, k, v, out, regard.Saved(lse=lse), **PACKED)
    np.testing.assert_allclose(got.d_k, expected.d_k, atol=1e-4)


Q4 = np.zeros((1, 4, 3, 16), np.float32)
BAD = {
    "rank 4": (dict(q=Q4), ValueError, r"rank of q \(4, .*must be 3, \[total, heads, head_dim\]"),
    "rank 3 without starts": (dict(cu_seqlens_q=None, cu_seqlens_kv=None), ValueError,
                              r"rank of q \(3, .*packed sequences.*cu_seqlens"),
    "one side alone": (dict(cu_seqlens_kv=None), ValueError, "cu_seqlens_kv is missing"),
    "the other alone": (dict(cu_seqlens_q=None), ValueError, "cu_seqlens_q is missing"),
    "float starts": (dict(cu_seqlens_q=STARTS_Q.astype(np.float32)), TypeError,
                     r"dtype of cu_seqlens_q \(float32 .*int32 or int64"),
    "bytes": (dict(cu_seqlens_q=STARTS_Q.astype(np.uint8)), TypeError, "int32 or int64"),
    "rank of starts": (dict(cu_seqlens_q=STARTS_Q[None]), ValueError, "rank of cu_seqlens_q"),
    "not from 0": (dict(cu_seqlens_q=STARTS_Q + 1), ValueError, r"cu_seqlens_q\[0\] \(1\)"),
    "descending": (dict(cu_seqlens_q=[0, 5, 4, 14, 15, 18]), ValueError, r"cu_seqlens_q\[2\] \(4\)"),
    "past the end": (dict(cu_seqlens_q=[0, 5, 5, 14, 15, 19]), ValueError,
                     r"cu_seqlens_q\[5\] \(19\)"),
    "another batch": (dict(cu_seqlens_q=[0, 18]), ValueError, "cu_seqlens_kv"),
    "no starts": (dict(cu_seqlens_q=[], cu_seqlens_kv=[]), (TypeError, ValueError), "cu_seqlens_q"),
    "max too small": (dict(max_seqlen_q=8), ValueError, "max_seqlen of cu_seqlens_q"),
    "max 0": (dict(max_seqlen_kv=0), ValueError, r"max_seqlen_kv \(0\)"),
    "max negative": (dict(max_seqlen_kv=-2), ValueError, r"max_seqlen_kv \(-2\)"),
    "max is no integer": (dict(max_seqlen_q=9.0), TypeError, r"max_seqlen_q \(9.0\)"),
    "scores": (dict(return_scores="probs"), regard.NoBackendError,
               "math supports scores_out only without packed"),
    "mask of a wrong batch": (dict(attn_mask=np.ones((3, 1, 1, 20), bool)), ValueError,
                              "attn_mask"),
    "lengths beside": (dict(lengths=regard.Lengths(seqlens=[1], seqlen=2)), ValueError,
                       "cu_seqlens_q .*beside lengths"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_before_any_output_is_written(name):
    changes, error, message = BAD[name]
    q, k, v = make()
    call = {"q": q, "k": k, "v": v, **PACKED, **changes}
    out = np.full((q.shape[0], 4, 24), 7.0, np.float32)
    with pytest.raises(error, match=message):
        regard.attention(**call, out=out)
    assert (out == 7).all()


def test_the_same_starts_on_both_sides_need_no_diagonal():
    q, _, _ = make(hq=2)
    for same in (STARTS_Q, STARTS_Q.tolist()):
        out = regard.attention(q, q, q, cu_seqlens_q=same, cu_seqlens_kv=same, is_causal=True)
        named = regard.attention(q, q, q, cu_seqlens_q=same, cu_seqlens_kv=same, is_causal=True,
                                 diagonal="bottom_right")
        assert np.array_equal(out, named)
    with pytest.raises(ValueError, match="diagonal"):
        regard.attention(q, q, q, cu_seqlens_q=STARTS_Q, cu_seqlens_kv=STARTS_Q.copy(),
                         is_causal=True)


def test_max_seqlen_needs_packed_sequences():
    q = np.zeros((1, 2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"max_seqlen_q \(3\) needs cu_seqlens_q"):
        regard.attention(q, q, q, max_seqlen_q=3)
