"""int8 and 8-bit float keys and values with scales."""

import pathlib
import re

import ml_dtypes
import numpy as np
import pytest

import regard

FORMATS = {"i8": (np.int8, 127), "f8e4m3": (ml_dtypes.float8_e4m3fn, 448),
           "f8e5m2": (ml_dtypes.float8_e5m2, 57344)}


def rows(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantised(x, name):
    """Codes and scales by NumPy's own arithmetic."""
    dtype, greatest = FORMATS[name]
    scales = (np.abs(x).max(axis=-1) / np.float32(greatest)).astype(np.float32)
    codes = x / scales[..., None]
    return (np.rint(codes) if name == "i8" else codes).astype(dtype), scales


def cache(name, batch, heads, length, dim):
    dtype, _ = FORMATS[name]
    return (np.zeros((batch, heads, length, dim), dtype),
            np.ones((batch, heads, length), np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_appended_rows_are_quantised_as_documented(name):
    q, k, v = rows(0, 2, 4, 3, 32), rows(1, 2, 2, 3, 32), rows(2, 2, 2, 3, 32)
    (codes_k, scales_k), (codes_v, scales_v) = cache(name, 2, 2, 8, 32), cache(name, 2, 2, 8, 32)
    out = regard.attention(q, codes_k, codes_v, k_new=k, v_new=v, seqlens_kv=[0, 5],
                           scales_k=scales_k, scales_v=scales_v)
    for b, begin in enumerate((0, 5)):
        for x, codes, scales in ((k, codes_k, scales_k), (v, codes_v, scales_v)):
            expected, scale = quantised(x[b], name)
            assert np.array_equal(codes[b, :, begin:begin + 3].view(np.uint8), expected.view(np.uint8))
            assert np.array_equal(scales[b, :, begin:begin + 3], scale)
    plain = regard.attention(q, codes_k.astype(np.float32) * scales_k[..., None],
                             codes_v.astype(np.float32) * scales_v[..., None], seqlens_kv=[3, 8])
    np.testing.assert_allclose(out, plain, rtol=0, atol=2e-6)


def test_k_and_v_have_types_of_their_own_and_k_scales_of_its_columns():
    q, k, v = rows(0, 1, 4, 1, 32), rows(1, 1, 2, 9, 32), rows(2, 1, 2, 9, 32)
    columns = np.linspace(0.01, 0.05, 64, dtype=np.float32).reshape(2, 32)
    codes = np.clip(np.rint(k / columns[:, None]), -127, 127).astype(np.int8)
    out = regard.attention(q, codes, v, channel_scales_k=columns)
    expected = regard.attention(q, codes.astype(np.float32) * columns[:, None], v)
    np.testing.assert_allclose(out, expected, rtol=0, atol=2e-6)


def test_what_is_refused():
    q, codes = rows(0, 1, 4, 1, 32), np.zeros((1, 2, 8, 32), np.int8)
    with pytest.raises(ValueError, match=r"scales_k \(absent\) must be given with k of i8"):
        regard.attention(q, codes, codes)
    with pytest.raises(TypeError, match="scales_k must be a float32 array, not a list"):
        regard.attention(q, codes, codes, scales_k=[[[1.0]]], scales_v=np.ones((1, 2, 1), np.float32))
    with pytest.raises(ValueError, match=r"scales_v\[0,1,0\] \(-1\), expected finite and more than 0"):
        regard.attention(q, codes, codes, scales_k=np.ones((1, 2, 8), np.float32),
                         scales_v=np.array([[[1.0], [-1.0]]], np.float32))
    with pytest.raises(TypeError, match="must be float64.*or int8 with scales"):
        regard.attention(q, codes.astype(np.int32), codes)


def test_the_figures_of_the_documents():
    table = (pathlib.Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
    for name in FORMATS:
        figures = re.search(rf"\| {name} \| ([\d.]+) % \| ([\d.]+) % \|", table).groups()
        for large, figure in zip((False, True), figures):
            q, k, v = rows(3, 1, 8, 16, 128), rows(4, 1, 8, 1024, 128), rows(5, 1, 8, 1024, 128)
            if large:
                k[..., 3::16] *= 8
            exact = regard.attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
            (codes_k, scales_k), (codes_v, scales_v) = (cache(name, 1, 8, 1024, 128) for _ in "kv")
            out = regard.attention(q, codes_k, codes_v, k_new=k, v_new=v, seqlens_kv=[0],
                                   scales_k=scales_k, scales_v=scales_v)
            error = 100 * np.sqrt(((out - exact) ** 2).mean() / (exact ** 2).mean())
            assert error == pytest.approx(float(figure), rel=0.15), (name, large)
