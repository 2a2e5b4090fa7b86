"""Keys and values of 8 bits and of 4 with scales, and the Hadamard matrix."""

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


def groups_of(x):
    """Codes of 4 bits, two in a byte, and [..., 2 * groups] scales and minima, by NumPy's own arithmetic."""
    codes, numbers = np.zeros(x.shape, np.uint8), []
    for begin in range(0, x.shape[-1], 32):
        part = x[..., begin:begin + 32].astype(np.float64)
        low, high = part.min(axis=-1), part.max(axis=-1)
        scale = np.maximum(((high - low) / 15).astype(np.float32), np.float32(2.0 ** -126))
        quotients = ((part - low[..., None]) / scale[..., None]).astype(np.float32)
        codes[..., begin:begin + 32] = np.clip(np.rint(quotients), 0, 15)
        numbers += [scale, low.astype(np.float32)]
    return codes[..., ::2] | codes[..., 1::2] << 4, np.stack(numbers, axis=-1)


def numbers_of_groups(packed, scales):
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])
    group = np.arange(codes.shape[-1]) // 32
    return (codes * scales[..., 2 * group].astype(np.float64) + scales[..., 2 * group + 1]).astype(np.float32)


def cache(name, batch, heads, length, dim):
    if name == "u4":
        return (np.zeros((batch, heads, length, dim // 2), np.uint8),
                np.ones((batch, heads, length, 2 * -(-dim // 32)), np.float32))
    dtype, _ = FORMATS[name]
    return (np.zeros((batch, heads, length, dim), dtype),
            np.ones((batch, heads, length), np.float32))


def types(name):
    return dict(k_dtype="u4", v_dtype="u4") if name == "u4" else {}


def hadamard(dim):
    matrix = np.ones((1, 1))
    while matrix.shape[0] < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(dim)


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


@pytest.mark.parametrize("dim", [2, 32, 40, 128])
def test_appended_rows_of_4_bits_are_quantised_as_documented(dim):
    q, k, v = rows(0, 2, 4, 3, dim), rows(1, 2, 2, 3, dim), rows(2, 2, 2, 3, dim)
    v[0, 0] = 3.5  # a row of equal numbers is exact
    (codes_k, scales_k), (codes_v, scales_v) = cache("u4", 2, 2, 8, dim), cache("u4", 2, 2, 8, dim)
    out = regard.attention(q, codes_k, codes_v, k_new=k, v_new=v, seqlens_kv=[0, 5],
                           scales_k=scales_k, scales_v=scales_v, **types("u4"))
    for b, begin in enumerate((0, 5)):
        for x, codes, scales in ((k, codes_k, scales_k), (v, codes_v, scales_v)):
            expected, numbers = groups_of(x[b])
            np.testing.assert_array_equal(codes[b, :, begin:begin + 3], expected)
            np.testing.assert_array_equal(scales[b, :, begin:begin + 3], numbers)
    assert (numbers_of_groups(codes_v, scales_v)[0, 0, :3] == 3.5).all()
    plain = regard.attention(q, numbers_of_groups(codes_k, scales_k), numbers_of_groups(codes_v, scales_v),
                             seqlens_kv=[3, 8])
    np.testing.assert_allclose(out, plain, rtol=0, atol=2e-6)


def test_codes_of_4_bits_beside_other_types_and_layouts():
    q, k, v = rows(0, 1, 4, 1, 64), rows(1, 1, 2, 9, 64), rows(2, 1, 2, 9, 64)
    codes, scales = groups_of(k)
    expected = regard.attention(q, numbers_of_groups(codes, scales), v)
    np.testing.assert_allclose(regard.attention(q, codes, v, k_dtype="int4", scales_k=scales), expected,
                               rtol=0, atol=2e-6)
    bshd = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, codes, v)]
    out = regard.attention(*bshd, k_dtype="u4", scales_k=scales, layout="BSHD")
    np.testing.assert_allclose(out.swapaxes(1, 2), expected, rtol=0, atol=2e-6)


def test_hadamard_leaves_results_what_they_are():
    matrix = hadamard(64)
    q, k, v = rows(0, 2, 4, 3, 64), rows(1, 2, 2, 3, 64), rows(2, 2, 2, 3, 64)
    mine, values = np.zeros((2, 2, 8, 64), np.float32), np.zeros((2, 2, 8, 64), np.float32)
    out = regard.attention(q, mine, values, k_new=k, v_new=v, seqlens_kv=[0, 0], hadamard=True)
    np.testing.assert_allclose(mine[:, :, :3], k @ matrix, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(values[:, :, :3], v)
    np.testing.assert_allclose(out, regard.attention(q, k, v), rtol=0, atol=1e-5)
    again = regard.attention(q, mine, values, seqlens_kv=[3, 3], hadamard=True)  # no new rows
    np.testing.assert_array_equal(again, out)
    with pytest.raises(ValueError, match=r"head_dim_qk \(24\) must be a power of two with hadamard"):
        regard.attention(q[..., :24], k[..., :24], v, hadamard=True)


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
    packed, scales = np.zeros((1, 2, 8, 16), np.uint8), np.ones((1, 2, 8, 2), np.float32)
    with pytest.raises(TypeError, match=r"or uint8 with k_dtype='u4'"):
        regard.attention(q, packed, packed)
    with pytest.raises(TypeError, match=r"dtype of v \(int8.*must be uint8 with v_dtype='u4'"):
        regard.attention(q, packed, codes, scales_k=scales, **types("u4"))
    with pytest.raises(ValueError, match=r"k_dtype \('i8'\) must be 'u4' \(or 'int4'\), or left out"):
        regard.attention(q, codes, codes, k_dtype="i8")
    with pytest.raises(ValueError, match=r"scales_v \(absent\) must be given with v of u4"):
        regard.attention(q, packed, packed, scales_k=scales, **types("u4"))
    with pytest.raises(ValueError, match=r"rank of scales_k \(3\) must be 4, \[entries,Hkv,rows,2\*groups\]"):
        regard.attention(q, packed, packed, scales_k=scales[..., 0], scales_v=scales, **types("u4"))


def test_the_figures_of_the_documents():
    table = (pathlib.Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
    for name in (*FORMATS, "u4"):
        figures = re.search(rf"\| {name} \| ([\d.]+) % \| ([\d.]+) % \|", table).groups()
        for large, figure in zip((False, True), figures):
            q, k, v = rows(3, 1, 8, 16, 128), rows(4, 1, 8, 1024, 128), rows(5, 1, 8, 1024, 128)
            if large:
                k[..., 3::16] *= 8
            exact = regard.attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
            (codes_k, scales_k), (codes_v, scales_v) = (cache(name, 1, 8, 1024, 128) for _ in "kv")
            out = regard.attention(q, codes_k, codes_v, k_new=k, v_new=v, seqlens_kv=[0],
                                   scales_k=scales_k, scales_v=scales_v, **types(name))
            error = 100 * np.sqrt(((out - exact) ** 2).mean() / (exact ** 2).mean())
            assert error == pytest.approx(float(figure), rel=0.15), (name, large)


def test_the_figures_of_hadamard():
    table = (pathlib.Path(__file__).parents[2] / "docs" / "numerics.md").read_text()
    q, k, v = rows(3, 1, 8, 64, 128), rows(4, 1, 8, 1024, 128), rows(5, 1, 8, 1024, 128)
    k[..., 5] *= 8
    exact = regard.attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    for name in ("i8", "f8e4m3", "u4"):
        figures = re.search(rf"\| {name} \| ([\d.]+) % \| ([\d.]+) % \|", table).groups()
        for mixed, figure in zip((False, True), figures):
            codes, scales = cache(name, 1, 8, 1024, 128)
            out = regard.attention(q, codes, np.zeros_like(v), k_new=k, v_new=v, seqlens_kv=[0],
                                   scales_k=scales, hadamard=mixed,
                                   **({"k_dtype": "u4"} if name == "u4" else {}))
            error = 100 * np.sqrt(((out - exact) ** 2).mean() / (exact ** 2).mean())
            assert error == pytest.approx(float(figure), rel=0.15), (name, mixed)
