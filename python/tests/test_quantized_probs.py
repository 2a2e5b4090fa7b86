"""quantize_probs: probabilities and dS of 8 bits, against NumPy's own roundings."""

import numpy as np
import pytest
from test_attention import BACKENDS

import regard

ml_dtypes = pytest.importorskip("ml_dtypes")
FORMATS = {"f8e4m3": (ml_dtypes.float8_e4m3fn, 256.0), "f8e5m2": (ml_dtypes.float8_e5m2, 32768.0)}
both = pytest.mark.parametrize("name", FORMATS)
each = pytest.mark.parametrize("backend", BACKENDS)


def tensors(name, keys=40, queries=7, dim=16, seed=3):
    """q, k and v of one head, and their scores in float64, which float32 has to the bit."""
    dtype = FORMATS[name][0]
    rng = np.random.default_rng(seed)
    q, k = (rng.integers(-2, 3, (1, 1, n, dim)).astype(np.float32) for n in (queries, keys))
    v = rng.standard_normal((1, 1, keys, dim)).astype(dtype)
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * 0.25
    return q.astype(dtype), k.astype(dtype), v, scores


def rounded(x, name, one):
    dtype, at_one = FORMATS[name]
    return (x * (at_one / one)).astype(dtype).astype(np.float64) * (one / at_one)


def probabilities(scores, name):
    """e^score over e^max, rounded as e^score."""
    most = scores.max(-1, keepdims=True)
    one = np.exp2(np.ceil(most / np.log(2)))
    return rounded(np.exp(scores), name, one) / np.exp(most)


@each
@both
def test_the_forward_rounds_probabilities_and_their_sum(name, backend):
    q, k, v, scores = tensors(name)
    out = np.empty(q.shape, np.float32)
    options = dict(softmax_scale=0.25, quantize_probs=True, backends=backend)
    _, lse = regard.attention(q, k, v, out=out, return_lse=True, **options)
    p = probabilities(scores, name)
    sums = p.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, p @ v.astype(np.float64) / sums, rtol=0, atol=2e-5)
    np.testing.assert_allclose(lse, scores.max(-1) + np.log(sums[..., 0]), rtol=0, atol=2e-6)
    plain = regard.attention(q, k, v, out=np.empty_like(out), softmax_scale=0.25, backends=backend)
    assert np.abs(out - plain).max() > 1e-3  # it is not what a call without it computes


@each
@both
@pytest.mark.parametrize("keys", [1, 2, 3, 40, 5000])
def test_values_of_ones_give_ones(name, backend, keys):
    """The sum is that of the rounded probabilities: of the others it would be off by some percent."""
    q, k, v, _ = tensors(name, keys)
    out = np.empty(q.shape, np.float32)
    regard.attention(q, k, np.ones_like(v), out=out, softmax_scale=0.3, quantize_probs=True, backends=backend)
    np.testing.assert_allclose(out, 1.0, rtol=0, atol=2e-6)


@both
def test_small_probabilities_become_nothing(name):
    """Below half of the format's smallest number, and not above it."""
    dtype, at_one = FORMATS[name]
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal) / at_one
    q, k = np.ones((1, 1, 1, 1), dtype), np.zeros((1, 1, 2, 1), dtype)
    v = np.float32([[1.0], [-1.0]]).reshape(1, 1, 2, 1).astype(dtype)
    for share, kept in ((0.4, 0.0), (0.6, 1.0)):
        bias = np.float32([0.0, np.log(share * smallest)]).reshape(1, 1, 1, 2)
        out, lse = regard.attention(q, k, v, attn_bias=bias, quantize_probs=True, return_lse=True,
                                    out=np.empty((1, 1, 1, 1), np.float32))
        weight = kept * smallest
        np.testing.assert_allclose(out.item(), (1 - weight) / (1 + weight), rtol=1e-6)
        np.testing.assert_allclose(lse.item(), np.log1p(weight), rtol=0, atol=1e-7)


@each
@both
@pytest.mark.parametrize("d_out_name", ["f8e4m3", "f8e5m2", "f32"])
def test_the_backward_rounds_them_and_ds(name, d_out_name, backend):
    q, k, v, scores = tensors(name)
    d_type = np.float32 if d_out_name == "f32" else FORMATS[d_out_name][0]
    d_out = np.random.default_rng(8).standard_normal(q.shape).astype(d_type)
    options = dict(softmax_scale=0.25, quantize_probs=True, backends=backend, gradient_dtype="f32")
    out, saved = regard.attention(q, k, v, out=np.empty(q.shape, np.float32), return_saved=True,
                                  d_out_dtype=d_out_name, **options)
    d_q, d_k, d_v = regard.attention_backward(d_out, q, k, v, out, saved, **options)[:3]

    p = probabilities(scores, name)
    sums = p.sum(-1, keepdims=True)
    wide = [x.astype(np.float64) for x in (q, k, v, d_out)]
    delta = (wide[3] * (p @ wide[2] / sums)).sum(-1, keepdims=True)
    d_scores = p / sums * (wide[3] @ wide[2].swapaxes(-1, -2) - delta)
    if d_out_name != "f32":
        largest = 2.0 ** np.floor(np.log2(np.abs(d_scores).max(-1, keepdims=True)))
        d_scores = rounded(d_scores, d_out_name, 2.0 * largest)
    for found, right, flipped in ((d_v, (p / sums).swapaxes(-1, -2) @ wide[3], 0),
                                  (d_q, 0.25 * d_scores @ wide[1], 3),
                                  (d_k, 0.25 * d_scores.swapaxes(-1, -2) @ wide[0], 3)):
        # A dS next to a tie may round to either side: so few elements may be off by a step.
        off = np.abs(found - right) > 1e-4 * np.abs(right).max()
        assert off.sum() <= flipped * q.shape[-1], (off.sum(), np.abs(found - right).max())


def test_it_is_data_of_the_selection():
    q, k, v, _ = tensors("f8e4m3")
    plain, narrow = (regard.explain(q, k, v, quantize_probs=on) for on in (False, True))
    assert "quantized_probs" not in str(plain.to_dict()["params"]) and "quantized_probs" in str(narrow.to_dict()["params"])
    bound = {kind: {c["backend"]: c["error_bound"] for c in selection.candidates}
             for kind, selection in (("plain", plain), ("narrow", narrow))}
    for backend in BACKENDS:
        assert bound["narrow"][backend] == pytest.approx(bound["plain"][backend] + 7e-2)
    with pytest.raises(regard.NoBackendError, match="error"):
        regard.attention(q, k, v, quantize_probs=True, policy=regard.Policy(max_error=5e-2))


def test_other_types_are_refused():
    x = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"quantize_probs \(true\) must be false where q is f32, not f8e4m3 or f8e5m2"):
        regard.attention(x, x, x, quantize_probs=True)
