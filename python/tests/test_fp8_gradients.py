"""Gradients of 8-bit floats: what they are, in which types, with which scales, and what is refused."""

import numpy as np
import pytest
from reference import gradients
from test_attention import BACKENDS, make

import regard

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
TYPES = {"f8e4m3": E4M3, "f8e5m2": E5M2, "bf16": BF16, "f16": np.float16, "f32": np.float32}
ROUNDING = {"f8e4m3": 2**-4, "f8e5m2": 2**-3, "bf16": 2**-8, "f16": 2**-11, "f32": 0.0}
OF_KV = np.array([[0.5, 2.0], [1.5, 0.25]])  # [batch, kv heads]


def wide(x, descale=1.0):
    """Numbers of a stored array in float64; descales are those of KV heads."""
    x = np.asarray(x).astype(np.float64)
    if np.ndim(descale) != 2:
        return x * np.reshape(descale, ())
    return x * np.repeat(descale, x.shape[1] // descale.shape[1], axis=1)[..., None, None]


def run(form, d_out_type, gradient, backend=None, descales=None, scales=None, out_type=None, **options):
    descales = dict(descales or {})
    descale_d_out = descales.pop("descale_d_out", 1.0)
    q, k, v = make(dtype=form)
    place = np.empty(q.shape, TYPES[out_type or "bf16"])
    words = dict(gradient_dtype=gradient, **descales, **options)
    out, saved = regard.attention(q, k, v, return_saved=True, out=place, backends=backend,
                                  d_out_dtype=d_out_type, **words)
    d_out = np.random.default_rng(5).standard_normal(out.shape).astype(TYPES[d_out_type])
    found = regard.attention_backward(d_out, q, k, v, out, saved, descale_d_out=descale_d_out,
                                      gradient_scales=scales, return_amax=True, **words)
    names = ("descale_q", "descale_k", "descale_v")
    tensors = [wide(x, descales.get(name, 1.0)) for name, x in zip(names, (q, k, v))]
    want = gradients(wide(d_out, descale_d_out), *tensors, **options)
    return found, want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", [E4M3, E5M2])
@pytest.mark.parametrize("d_out_type, gradient", [("f8e5m2", "f8e5m2"), ("f8e5m2", "bf16"), ("f8e4m3", "f32"),
                                                  ("bf16", "f16"), ("f32", "f8e4m3"), ("f16", "f32")])
def test_against_the_reference(d_out_type, gradient, form, backend):
    scales = np.float32([0.5, 4.0, 0.125])
    all_descales = dict(descale_q=OF_KV, descale_k=0.75, descale_v=1 / OF_KV, descale_d_out=OF_KV.T)
    for descales in ({}, all_descales):
        found, want = run(form, d_out_type, gradient, backend, descales, scales, is_causal=True,
                          diagonal="bottom_right", softcap=3.0)
        for n, (mine, right) in enumerate(zip(found[:3], want[:3], strict=True)):
            assert mine.dtype == TYPES[gradient]
            most = np.abs(right).max()
            limit = ROUNDING[gradient] + (1e-5 if descales or n == 2 else 1e-5) + 4e-3 * (n < 2)
            most_stored = float(ml_dtypes.finfo(TYPES[gradient]).max)
            stored = np.clip(right * scales[n], -most_stored, most_stored)
            assert np.abs(mine.astype(np.float64) - stored).max() <= limit * most * scales[n], n
            assert abs(found.amax[n] - most) <= 5e-3 * most


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form, name", [(E4M3, "f8e4m3"), (E5M2, "f8e5m2")])
def test_out_of_8_bits_keeps_gradients_exact(form, name, backend):
    """delta comes from the probabilities: nothing of out's three bits is left in it."""
    found, want = run(form, "f32", "f32", backend, out_type=name)
    for mine, right in zip(found[:3], want[:3], strict=True):
        assert np.abs(mine - right).max() < 2e-5 * np.abs(right).max()


def test_any_type_may_have_descales():
    q, k, v = make()
    words = dict(descale_q=2.0, descale_k=OF_KV, descale_v=0.5)
    out, saved = regard.attention(q, k, v, return_saved=True, **words)
    d_out = np.ones_like(out)
    found = regard.attention_backward(d_out, q, k, v, out, saved, descale_d_out=3.0, **words)
    want = gradients(3 * d_out, 2 * wide(q), wide(k, OF_KV), 0.5 * wide(v))
    for mine, right in zip(found[:3], want[:3], strict=True):
        assert np.abs(mine - right).max() < 2e-5 * np.abs(right).max()
    assert found.amax is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("out_type", ["bf16", "f8e4m3"])
def test_dropout_and_sinks(out_type, backend):
    found, want = run(E4M3, "f8e5m2", "f32", backend, dict(descale_v=OF_KV, descale_d_out=OF_KV.T),
                      out_type=out_type, dropout_p=0.25, seed=3, diagonal="top_left",
                      sinks=np.float32([0.5, -1, 2, 0]))
    for mine, right in zip([*found[:3], found.d_sinks], [*want[:3], want[4]], strict=True):
        assert np.abs(mine - right).max() < 6e-3 * np.abs(right).max()


def test_gradients_saturate_and_a_nan_is_stated():
    found, _ = run(E4M3, "f32", "f8e4m3", scales=[1e6, 1e6, 1e6])
    assert all(np.abs(x.astype(np.float32)).max() == 448 for x in found[:3])
    q, k, v = make(dtype=E4M3)
    out, saved = regard.attention(q, k, v, return_saved=True, d_out_dtype="f32")
    d_out = np.zeros(out.shape, np.float32)
    d_out[0, 0, 0, 0] = np.nan
    found = regard.attention_backward(d_out, q, k, v, out, saved, return_amax=True)
    assert np.isnan(found.amax).all()


def test_threads_change_no_bits():
    results = []
    before = regard.get_num_threads()
    try:
        for threads in (1, 3):
            regard.set_num_threads(threads)
            found, _ = run(E4M3, "f8e5m2", "bf16", descales=dict(descale_q=OF_KV))
            results.append([x.tobytes() for x in (*found[:3], found.amax)])
    finally:
        regard.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.parametrize("words, error, message", [
    (dict(d_out_dtype="f64"), ValueError, r"d_out_dtype \('f64'\) must be 'f8e4m3'"),
    (dict(gradient_dtype="i8"), ValueError, r"gradient_dtype \('i8'\) must be"),
    (dict(fp8_recipe="none"), ValueError, r"fp8_recipe \('none'\) must be 'delayed'"),
    (dict(fp8_recipe=3), TypeError, "fp8_recipe"),
])
def test_refusals_of_the_forward(words, error, message):
    with pytest.raises(error, match=message):
        regard.attention(*make(dtype=E4M3), return_saved=True, **words)


def test_refusals_of_the_backward():
    q, k, v = make(dtype=E4M3)
    out, saved = regard.attention(q, k, v, return_saved=True, d_out_dtype="f8e5m2")
    d_out = np.ones(out.shape, E5M2)
    back = lambda d=d_out, **words: regard.attention_backward(d, q, k, v, out, saved, **words)  # noqa: E731
    back()
    for words, message in [(dict(descale_d_out=-1.0), r"descale_d_out\[0\] \(-1\), expected finite"),
                           (dict(descale_d_out=np.ones((2, 4))), r"descale_d_out \(\[2,4\]\) must be \[2,2\]"),
                           (dict(gradient_scales=[1.0, np.inf, 1.0]), r"gradient_scales\[1\] \(inf\)"),
                           (dict(gradient_scales=[1.0, 1.0]), r"gradient_scales \(\[2\]\) must be \[3\]")]:
        with pytest.raises(ValueError, match=message):
            back(**words)
    with pytest.raises(ValueError, match="d_out"):
        back(np.ones(out.shape, E4M3))
    with pytest.raises(ValueError, match="dtype_gradients|gradient"):
        back(gradient_dtype="f32")
    x = make()
    with pytest.raises(ValueError, match=r"dtype_gradients \(bf16\) must be left out, or f32, where q is f32"):
        regard.attention(*x, return_saved=True, gradient_dtype="bf16")


def test_the_recipe_is_part_of_the_problem():
    q, k, v = make(dtype=E4M3)
    for recipe in ("delayed", "current", "mxfp8", "block"):
        assert f"recipe={recipe}" in str(regard.explain(q, k, v, fp8_recipe=recipe))
