"""KVCache and PagedKVCache over PyTorch's tensors, and rows and queries of either kind in both."""

import copy
import importlib
import pickle

import numpy as np
import pytest
import torch
from hypothesis import settings, strategies as st

import regard
import test_cache
from test_cache import HEADS, SIZE, rows_of

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class WithTensors:
    """test_cache.Machine with rows and queries that are tensors or, drawn anew each time, NumPy arrays.
    Its numbers are those of the type, which then change no more."""

    dtype = torch.bfloat16
    in_numpy = None  # the same type of ml_dtypes or NumPy

    def next_rows(self, count):
        rows = torch.from_numpy(super().next_rows(count)).to(self.dtype)
        return rows.float().numpy()

    def given(self, data, rows):
        if self.in_numpy is not None and data.draw(st.booleans()):
            return rows.astype(self.in_numpy)
        return torch.from_numpy(rows).to(self.dtype)

    def numbers(self, rows):
        if isinstance(rows, torch.Tensor):
            return rows.float().numpy()
        return rows.astype(np.float32)

    def expected(self, q, k, v, **options):
        q, k, v = (torch.from_numpy(np.ascontiguousarray(x)).to(self.dtype) for x in (q, k, v))
        return regard.attention(q, k, v, **options).float().numpy()


def machine(base, dtype, held, mixes):
    """The tests of a cache that holds `held`; with `mixes`, NumPy arrays are given, too."""

    def make(self):
        shared = dict(num_kv_heads=HEADS, head_dim=SIZE, dtype=held)
        if base is test_cache.Paged:
            return regard.PagedKVCache(num_pages=test_cache.PAGES, page_size=test_cache.PAGE_SIZE,
                                       **shared)
        return regard.KVCache(batch_size=test_cache.ENTRIES, capacity=test_cache.CAPACITY, **shared)

    kinds = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
    in_numpy = np.dtype(getattr(importlib.import_module("ml_dtypes") if dtype == torch.bfloat16 else np,
                                kinds[dtype])) if mixes else None
    made = type(f"{base.__name__}{held}".replace(".", "_"), (WithTensors, base),
                dict(make=make, dtype=dtype, in_numpy=in_numpy)).TestCase
    made.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
    return made


TestPagedTensors = machine(test_cache.Paged, torch.bfloat16, torch.bfloat16, mixes=False)
TestPagedTensorsMixed = machine(test_cache.Paged, torch.float32, torch.float32, mixes=True)
TestPagedArraysMixed = machine(test_cache.Paged, torch.bfloat16, "bf16", mixes=True)
TestContiguousTensors = machine(test_cache.Contiguous, torch.float32, torch.float32, mixes=False)
TestContiguousTensorsMixed = machine(test_cache.Contiguous, torch.bfloat16, torch.bfloat16, mixes=True)
TestContiguousArraysMixed = machine(test_cache.Contiguous, torch.float32, "f32", mixes=True)


def paged(**changes):
    return regard.PagedKVCache(**dict(dict(num_pages=3, page_size=4, num_kv_heads=HEADS, head_dim=SIZE,
                                           dtype=torch.bfloat16), **changes))


def test_a_torch_dtype_needs_no_ml_dtypes(monkeypatch):
    def without(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", without)
    cache = paged()
    s = cache.allocate()
    rows = torch.from_numpy(rows_of(1, 5)).bfloat16()
    cache.append(s, *rows)
    assert cache.k.dtype == torch.bfloat16 and torch.equal(torch.stack(cache.rows(s)), rows)


@pytest.mark.parametrize("held", [torch.float64, torch.float32, torch.float16, torch.bfloat16,
                                  torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_rows_are_rounded_once_to_the_cache(held, given):
    """The same numbers from a tensor or an array, and in a cache of either kind."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    names = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16",
             torch.bfloat16: "bf16", torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2"}
    rows = (torch.from_numpy(rows_of(4, 6)).double() * 1.0000001).to(given)
    name = str(given).removeprefix("torch.")
    as_array = np.ascontiguousarray(rows.double().numpy().astype(getattr(np, name, None) or
                                                                 getattr(ml_dtypes, name)))
    expected = rows.to(held).double()
    for dtype in (held, names[held]):
        for x in (rows, as_array, as_array[:, :, ::-1][:, :, ::-1]):
            cache = paged(dtype=dtype, scales=None)
            s = cache.allocate()
            cache.append(s, x[0], x[1])
            for mine, other in zip(cache.rows(s), expected):
                mine = mine.double() if dtype is held else torch.from_numpy(mine.astype(np.float64))
                assert torch.equal(mine, other)


@pytest.mark.parametrize("held", [torch.float8_e4m3fn, torch.bfloat16, "bf16"])
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_queries_of_a_wider_type(held, kind):
    pytest.importorskip("ml_dtypes")
    rows = torch.from_numpy(rows_of(2, 7))
    q = torch.from_numpy(rows_of(3, 1))[0].repeat(2, 1, 1)[None]
    cache = paged(dtype=held, scales=None)
    s = cache.allocate()
    cache.append(s, *rows[:, :, :6])
    given = q if kind == "tensor" else q.numpy()
    out, lse = cache.attend(given, [s], k_new=rows[:1, :, 6:], v_new=rows[1:, :, 6:], return_lse=True)
    assert type(out) is type(lse) is type(given)
    dtype = torch.bfloat16 if held == "bf16" else held
    with torch.no_grad():
        k, v = rows.to(dtype)[:, None]
        expected, expected_lse = regard.attention(q, k, v, return_lse=True)
    assert torch.equal(torch.as_tensor(out), expected)
    assert torch.equal(torch.as_tensor(lse), expected_lse)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
@pytest.mark.parametrize("held", ["f32", torch.bfloat16])
def test_a_copy_has_memory_of_its_own(copied, held):
    cache = paged(dtype=held)
    s = cache.allocate()
    cache.append(s, *rows_of(1, 2))
    other = copied(cache)
    other.append(s, *rows_of(2, 1))
    assert cache.length(s) == 2 and other.length(s) == 3
    q = torch.ones(1, 2, 1, SIZE)
    k, v = (torch.as_tensor(x)[None] for x in other.rows(s))
    assert k[:, :, 2].all() and torch.equal(other.attend(q, [s]), regard.attention(q, k, v))


def test_bad_calls_change_nothing():
    cache = paged()
    s = cache.allocate()
    rows = torch.from_numpy(rows_of(1, 3)).bfloat16()
    cache.append(s, *rows)
    q = torch.ones(1, HEADS, 1, SIZE, dtype=torch.bfloat16)
    recorded = rows.clone().requires_grad_()
    for call, error, match in [
        (lambda: cache.append(s, recorded[0], rows[1]), TypeError, "k requires a gradient"),
        (lambda: cache.append(s, rows[0], rows[1].to("meta")), ValueError, "v is on meta"),
        (lambda: cache.append(s, rows[0][0], rows[1]), ValueError, "shape of k"),
        (lambda: cache.append(s, *torch.ones(2, HEADS, 10, SIZE)), regard.CacheFullError, "need 3 pages"),
        (lambda: cache.attend(q.clone().requires_grad_(), [s]), TypeError, "q requires a gradient"),
        (lambda: cache.attend(q, [s], k_new=q, v_new=q, softcap=-1.0), ValueError, "softcap"),
    ]:
        with pytest.raises(error, match=match):
            call()
        assert (cache.length(s), cache.free_pages) == (3, 2)
        assert torch.equal(torch.stack(cache.rows(s)), rows)
    with torch.no_grad():
        cache.append(s, *recorded)
    assert cache.length(s) == 6 and not cache.k.requires_grad


@pytest.mark.parametrize("dtype, match", [(torch.int16, "torch.int16. must be one of torch.float64"),
                                          ("bfloat16", "PyTorch's dtype"), (None, "None. must be")])
def test_other_types_are_refused(dtype, match):
    with pytest.raises(ValueError, match=match):
        paged(dtype=dtype)


def test_the_tensors_serve_compiled_code():
    cache = regard.KVCache(batch_size=2, capacity=8, num_kv_heads=HEADS, head_dim=SIZE,
                           dtype=torch.bfloat16)
    s = cache.allocate()
    cache.append(s, *rows_of(1, 5))
    q = torch.ones(1, 2, 1, SIZE, dtype=torch.bfloat16)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def read(q, lengths, entries):
        return regard.torch.attention_with_kvcache(q, cache.k, cache.v, seqlens_kv=lengths,
                                                   cache_batch_idx=entries)

    out = read(q, torch.tensor([5], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))
    assert torch.equal(out, cache.attend(q, [s]))


def test_methods_break_a_compiled_graph_and_stay_right():
    cache, expected = paged(), paged()
    for each in (cache, expected):
        each.append(each.allocate(), *rows_of(1, 2))
    q, new = torch.randn(1, 2, 1, SIZE).bfloat16(), torch.randn(1, HEADS, 1, SIZE).bfloat16()

    def step(cache, q, new):
        cache.append(0, new[0] * 2, new[0] * 3)
        return cache.attend(q * 2, [0], k_new=new, v_new=new * 4) + 1

    compiled = torch.compile(step, backend="aot_eager")
    for _ in range(3):
        assert torch.equal(compiled(cache, q, new), step(expected, q, new))
        assert cache.length(0) == expected.length(0)
    assert torch.equal(cache.k, expected.k) and torch.equal(cache.v, expected.v)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda q: cache.attend(q, [0]), fullgraph=True, backend="eager")(q)


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("held", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8])
def test_tensors_are_quantised_as_arrays_are(held, hadamard):
    """The same codes and scales from append and from attend, in a cache of either kind."""
    pytest.importorskip("ml_dtypes")
    names = {torch.int8: "i8", torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2",
             torch.uint8: "u4"}
    rows = torch.from_numpy(rows_of(6, 7))
    q = torch.from_numpy(rows_of(7, 1))[0].repeat(2, 1, 1)[None]
    caches = [paged(num_pages=6, dtype=dtype, hadamard=hadamard) for dtype in (held, names[held])]
    outs = []
    for cache, given in zip(caches, (lambda x: x, lambda x: x.numpy())):
        s = cache.allocate()
        cache.append(s, *map(given, rows[:, :, :6]))
        outs.append(torch.as_tensor(cache.attend(given(q), [s], k_new=given(rows[:1, :, 6:]),
                                                 v_new=given(rows[1:, :, 6:]))))
    assert caches[0].k.dtype == held and torch.equal(*outs)
    np.testing.assert_array_equal(caches[0].scales_v, caches[1].scales_v)
    fork, rows_before = caches[0].fork(0), caches[0].rows(0)
    for cache in caches:
        cache.evict(0, 2)  # rows and scales move
    for of_tensors, of_arrays, of_fork, before in zip(caches[0].rows(0), caches[1].rows(0),
                                                      caches[0].rows(fork), rows_before):
        np.testing.assert_array_equal(of_tensors, of_arrays)
        np.testing.assert_array_equal(of_tensors, before[:, 2:])
        np.testing.assert_array_equal(of_fork, before)


def test_codes_of_4_bits_need_scales_and_an_even_head_dim():
    with pytest.raises(ValueError, match=r"scales \(None\) must be one of .* where k is u4"):
        paged(dtype=torch.uint8, scales=None)
    with pytest.raises(ValueError, match=r"scales \('page'\) must be 'token' where k is u4"):
        paged(dtype=torch.uint8, scales="page")
    with pytest.raises(ValueError, match=r"head_dim \(7\) must be even where k is u4"):
        paged(dtype=torch.uint8, head_dim=7)
    cache = paged(k_dtype=torch.bfloat16, v_dtype=torch.uint8)
    assert cache.k.shape[3] == SIZE and cache.v.shape[3] == SIZE // 2 and cache.v.dtype == torch.uint8


@pytest.mark.skipif(not test_cache.grants_huge_pages(), reason="this system grants no huge pages")
@pytest.mark.parametrize("make", test_cache.LARGE)
def test_large_caches_lie_in_huge_pages(make):
    test_cache.check_large_cache(make, torch.float32)
