"""KVCache and PagedKVCache of 8 bits with scales, against models that keep every row as it came."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

import regard
from test_cache import CAPACITY, ENTRIES, HEADS, PAGES, PAGE_SIZE, SIZE, Contiguous, Paged, rows_of
from test_scales import FORMATS, groups_of, hadamard, numbers_of_groups, quantised, rows

COLUMNS = np.linspace(0.02, 0.06, HEADS * SIZE, dtype=np.float32).reshape(HEADS, SIZE)


class OfScales:
    """k of one format and v of another, each row with a scale."""

    names = ("i8", "i8")

    def parts(self, k, v):
        """Codes and scales by NumPy's own arithmetic, and the keywords of attention."""
        (codes_k, scales_k), (codes_v, scales_v) = (quantised(x, name)
                                                    for x, name in zip((k, v), self.names))
        return codes_k, codes_v, dict(scales_k=scales_k, scales_v=scales_v)

    def expected(self, q, k, v, **options):
        codes_k, codes_v, scales = self.parts(k, v)
        return regard.attention(q, codes_k, codes_v, **scales, **options)

    @invariant()
    def has_the_rows(self):
        for sequence, rows in self.model.items():
            assert self.cache.length(sequence) == rows.shape[2]
            for mine, code, scale in zip(self.cache.rows(sequence), *self.numbers_of(rows)):
                np.testing.assert_array_equal(mine, code.astype(np.float32) * scale)

    def numbers_of(self, rows):
        codes_k, codes_v, scales = self.parts(rows[0], rows[1])
        columns = scales.get("channel_scales_k")
        of_k = columns[:, None] if columns is not None else scales["scales_k"][..., None]
        return (codes_k, codes_v), (of_k, scales["scales_v"][..., None])


class PagedOfIntegers(OfScales, Paged):
    def make(self):
        return regard.PagedKVCache(num_pages=PAGES, page_size=PAGE_SIZE, num_kv_heads=HEADS,
                                   head_dim=SIZE, dtype="i8")


class PagedOfColumns(OfScales, Paged):
    names = ("i8", "f8e5m2")

    def make(self):
        cache = regard.PagedKVCache(num_pages=PAGES, page_size=PAGE_SIZE, num_kv_heads=HEADS,
                                    head_dim=SIZE, k_dtype="i8", v_dtype="f8e5m2", scales="channel")
        cache.channel_scales_k[:] = COLUMNS
        return cache

    def parts(self, k, v):
        codes_v, scales_v = quantised(v, "f8e5m2")
        codes_k = np.clip(np.rint(k / COLUMNS[:, None]), -127, 127).astype(np.int8)
        return codes_k, codes_v, dict(channel_scales_k=COLUMNS, scales_v=scales_v)


class ContiguousOfTwoTypes(OfScales, Contiguous):
    names = ("f8e4m3", "i8")

    def make(self):
        return regard.KVCache(batch_size=ENTRIES, capacity=CAPACITY, num_kv_heads=HEADS, head_dim=SIZE,
                              k_dtype="f8e4m3", v_dtype="i8")


class OfGroups(OfScales):
    """Codes of 4 bits."""

    def parts(self, k, v):
        (codes_k, scales_k), (codes_v, scales_v) = groups_of(k), groups_of(v)
        return codes_k, codes_v, dict(scales_k=scales_k, scales_v=scales_v, k_dtype="u4", v_dtype="u4")

    @invariant()
    def has_the_rows(self):
        for sequence, kept in self.model.items():
            assert self.cache.length(sequence) == kept.shape[2]
            for mine, x in zip(self.cache.rows(sequence), kept):
                np.testing.assert_array_equal(mine, numbers_of_groups(*groups_of(x)))


class PagedOfGroups(OfGroups, Paged):
    def make(self):
        return regard.PagedKVCache(num_pages=PAGES, page_size=PAGE_SIZE, num_kv_heads=HEADS,
                                   head_dim=SIZE, dtype="int4")


class ContiguousOfGroups(OfGroups, Contiguous):
    def make(self):
        return regard.KVCache(batch_size=ENTRIES, capacity=CAPACITY, num_kv_heads=HEADS, head_dim=SIZE,
                              dtype="u4")


TestPagedOfGroups = PagedOfGroups.TestCase
TestContiguousOfGroups = ContiguousOfGroups.TestCase
TestPagedOfIntegers = PagedOfIntegers.TestCase
TestPagedOfColumns = PagedOfColumns.TestCase
TestContiguousOfTwoTypes = ContiguousOfTwoTypes.TestCase
for machine in (TestPagedOfIntegers, TestPagedOfColumns, TestContiguousOfTwoTypes, TestPagedOfGroups,
                TestContiguousOfGroups):
    machine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
del machine


@pytest.mark.parametrize("name", FORMATS)
def test_scales_of_pages_are_the_callers_and_saturate(name):
    cache = regard.PagedKVCache(num_pages=6, page_size=4, num_kv_heads=HEADS, head_dim=SIZE, dtype=name,
                                scales="page")
    s = cache.allocate()
    rows = rows_of(1, 6)
    with pytest.raises(ValueError, match=r"scales_k\[.*\] \(nan\) must be finite and more than 0; set it"):
        cache.append(s, *rows)
    assert cache.length(s) == 0 and cache.free_pages == 6
    cache.scales_k[:], cache.scales_v[:] = 0.01, 0.04
    rows[0, :, 0] = 1e6
    cache.append(s, *rows)
    k, v = cache.rows(s)
    assert (k[:, 0] == np.float32(0.01) * np.float32(FORMATS[name][1])).all()
    step = {"i8": dict(rtol=0, atol=0.0201), "f8e4m3": dict(rtol=1 / 16, atol=1e-3),
            "f8e5m2": dict(rtol=1 / 8, atol=1e-3)}[name]
    np.testing.assert_allclose(v, rows[1], **step)
    t = cache.fork(s)
    q = rows_of(2, 1)[0].repeat(2, 0)[None]
    new = rows_of(3, 1)[:, None]
    cache.attend(q, [t], k_new=new[0], v_new=new[1])  # copies the page, and its scales
    np.testing.assert_array_equal(cache.rows(t)[0][:, :6], k)
    cache.evict(t, 4)
    with pytest.raises(ValueError, match="must be whole pages of 4 where pages have scales"):
        cache.evict(t, 1)
    assert cache.length(t) == 3


def test_rows_that_are_not_finite_change_nothing():
    cache = regard.PagedKVCache(num_pages=2, page_size=4, num_kv_heads=HEADS, head_dim=SIZE, dtype="i8")
    s = cache.allocate()
    rows = rows_of(1, 3)
    cache.append(s, *rows)
    before = [x.copy() for x in (*cache.rows(s), cache.scales_k, cache.scales_v)]
    bad = rows.copy()
    bad[1, 0, 0, 0] = np.nan
    q = rows_of(2, 1)[0].repeat(2, 0)[None]
    for call in (lambda: cache.append(s, *bad),
                 lambda: cache.attend(q, [s], k_new=bad[:1], v_new=bad[1:])):
        with pytest.raises(ValueError, match="finite"):
            call()
        assert cache.length(s) == 3 and cache.free_pages == 1
        for mine, other in zip((*cache.rows(s), cache.scales_k, cache.scales_v), before):
            np.testing.assert_array_equal(mine, other)


def test_8_bit_floats_without_scales_are_rounded_alone():
    cache = regard.KVCache(batch_size=1, capacity=4, num_kv_heads=HEADS, head_dim=SIZE, dtype="f8e4m3",
                           scales=None)
    s = cache.allocate()
    rows = rows_of(1, 3)
    cache.append(s, *rows)
    assert cache.scales_k is cache.scales_v is cache.channel_scales_k is None
    np.testing.assert_array_equal(cache.rows(s)[0], rows[0].astype(cache.k.dtype))


def test_what_codes_of_4_bits_and_the_hadamard_matrix_need():
    sizes = dict(num_pages=2, page_size=4, num_kv_heads=HEADS)
    with pytest.raises(ValueError, match=r"head_dim \(7\) must be even where k is u4"):
        regard.PagedKVCache(**sizes, head_dim=7, dtype="int4")
    with pytest.raises(ValueError, match=r"scales \('page'\) must be 'token' where v is u4"):
        regard.PagedKVCache(**sizes, head_dim=8, k_dtype="i8", v_dtype="u4", scales="page")
    with pytest.raises(ValueError, match=r"scales \(None\) must be one of .* where k is u4"):
        regard.PagedKVCache(**sizes, head_dim=8, dtype="u4", scales=None)
    with pytest.raises(ValueError, match=r"head_dim \(12\) must be a power of two with hadamard=True"):
        regard.PagedKVCache(**sizes, head_dim=12, dtype="f32", hadamard=True)
    cache = regard.PagedKVCache(**sizes, head_dim=8, dtype="f32", hadamard=True)
    with pytest.raises(TypeError, match=r"hadamard \(False\) is what the cache states"):
        cache.attend(np.ones((1, HEADS, 1, 8), np.float32), [cache.allocate()], hadamard=False)


@pytest.mark.parametrize("k_dtype, tolerance", [("f64", 1e-14), ("f32", 1e-5), ("i8", 0.02), ("u4", 0.2)])
def test_a_cache_with_the_hadamard_matrix_attends_as_one_without(k_dtype, tolerance):
    dtype = np.float64 if k_dtype == "f64" else np.float32
    cache = regard.KVCache(batch_size=2, capacity=40, num_kv_heads=2, head_dim=64, k_dtype=k_dtype,
                           v_dtype="f64" if k_dtype == "f64" else "f32", hadamard=True)
    k, v, q = (rows(*shape).astype(dtype) for shape in ((1, 2, 30, 64), (2, 2, 30, 64), (3, 1, 4, 2, 64)))
    s = cache.allocate()
    cache.append(s, k[:, :28], v[:, :28])
    out = cache.attend(q, [s], k_new=k[None, :, 28:], v_new=v[None, :, 28:], is_causal=True)
    expected = regard.attention(q, k[None], v[None], is_causal=True, diagonal="bottom_right")
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(cache.rows(s)[0], k @ hadamard(64), rtol=0, atol=10 * tolerance)
    np.testing.assert_array_equal(cache.rows(s)[1], v)
