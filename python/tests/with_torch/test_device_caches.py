"""Caches by the way of CUDA tensors, taken by tensors of a CPU, and fake tensors of a device."""

import numpy as np
import pytest
import test_kvcache
import test_kvcache_codes
import test_kvcache_operator
import test_transformers_cache_rows
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import regard
import regard.torch
from regard import _cache_memory
from regard.flash_attn import flash_attn_with_kvcache
from regard.torch import ArgumentError, _device, attention_with_kvcache

OPTIONS, CODES = test_kvcache_operator.OPTIONS, test_kvcache_codes.CODES


@pytest.fixture
def device_way(device_calls, monkeypatch):
    monkeypatch.setattr(_cache_memory, "_device_of", lambda device: torch.device("cpu"))


@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_regard_attention(device_way, name):
    test_kvcache_operator.test_it_is_regard_attention(name, torch.bfloat16)


@pytest.mark.parametrize("name", CODES)
def test_codes_are_those_of_regard_attention(device_way, name):
    test_kvcache_codes.test_it_is_regard_attention(name)


@pytest.mark.parametrize("name, backend", [("pages", "inductor"), ("rotary", "aot_eager")])
def test_compiled_functions_keep_the_order_of_appends(device_way, name, backend):
    test_kvcache_operator.test_two_appends_in_a_compiled_function_keep_their_order(name, backend)


@pytest.mark.parametrize("test", [
    test_kvcache_operator.test_a_compiled_function_serves_growing_lengths_and_other_batches,
    test_kvcache_operator.test_packed_queries_over_pages,
    test_kvcache_operator.test_a_cache_may_have_a_type_that_is_no_wider,
    test_kvcache_operator.test_scopes,
    test_kvcache.test_an_int_is_the_length_of_every_sequence_and_none_the_whole_cache,
    test_kvcache.test_alibi,
], ids=lambda test: test.__name__)
def test_what_holds_of_cpu_tensors(device_way, test):
    test()


@pytest.mark.parametrize("place", [(None, True), (16, False)], ids=["entries", "pages"])
@pytest.mark.parametrize("new, leftpad", [(0, None), (5, (0, 60, 77))])
def test_flash_attns_grid(device_way, place, new, leftpad):
    test_kvcache.test_grid(torch.float32, 1e-5, *place, new, leftpad, True, (7, 0))


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("states_longest", [False, True])
def test_packed_queries(device_way, monkeypatch, layout, states_longest):
    """The longest length is read where it is not stated alone."""
    reads = []
    longest = _device.longest
    monkeypatch.setattr(_device, "longest", lambda starts: reads.append(1) or longest(starts))
    given = test_kvcache_operator.make()
    ints = test_kvcache_operator.ints
    rows = torch.randn(5, 4, 8)
    pages = [given[name].transpose(1, 2).contiguous() if layout == "BSHD" else given[name]
             for name in ("k", "v")]
    options = dict(cu_seqlens_q=ints(0, 2, 5), page_table=ints(2, 0).reshape(2, 1), return_lse=True,
                   seqlens_kv=ints(9, 4), is_causal=True, layout=layout,
                   max_seqlen_q=3 if states_longest else 0)
    out, lse = attention_with_kvcache(rows, *pages, **options)
    del options["max_seqlen_q"]
    wanted, wanted_lse = regard.attention(rows, *pages, diagonal="bottom_right", **options)
    assert torch.equal(out, wanted) and torch.equal(lse, wanted_lse)
    assert bool(reads) != states_longest


def test_integers_of_64_bits_do_not_wrap(device_way):
    """2^32 is no length of 0, but one of all rows; the CPU that computes here refuses both ends."""
    for number, held in ((2**32, 2**31 - 1), (-2**32 - 3, -2**31), (5, 5)):
        assert _device._int32(torch.tensor([number])).tolist() == [held]
    with pytest.raises(ArgumentError, match=r"seqlens_kv\[0\] .2147483647."):
        test_kvcache_operator.call(seqlens_kv=torch.tensor([2**32, 0]))


def test_rows_that_are_appended_to_are_not_copied(device_way):
    given = test_kvcache_operator.make()
    spread = torch.stack([given["k"], given["k"]], -1)[..., 0]
    options = dict(seqlens_kv=given["lengths"], cache_batch_idx=test_kvcache_operator.ints(2, 0))
    read = attention_with_kvcache(given["q"], spread, given["v"], **options)
    assert torch.equal(read, attention_with_kvcache(given["q"], given["k"], given["v"], **options))
    with pytest.raises(ArgumentError, match="stride.* of k "):
        attention_with_kvcache(given["q"], spread, given["v"], k_new=given["first"],
                               v_new=given["second"], **options)


def test_what_a_call_on_a_device_cannot_do(device_way):
    q = torch.ones(1, 2, 1, 8)
    for diagonal in (3, "bottom-right"):
        words = f"diagonal .{diagonal!r}. must be 'top_left' or 'bottom_right'"
        with pytest.raises(ArgumentError, match=words):
            _device.attention(q, q, q, diagonal=diagonal, is_causal=True)
    for name, wrong, words in (("is_causal", 1, "True or False"), ("softcap", "a", "a number"),
                               ("window", 2, "a pair of integers"), ("seed", -1, "0 to"),
                               ("max_seqlen_q", "a", "an integer"), ("policy", "math", "a regard.Policy"),
                               ("backends", "maths", "a backend's name")):
        with pytest.raises((TypeError, ValueError), match=rf"{name} .{wrong!r}. must be {words}"):
            _device.attention(q, q, q, **{name: wrong})
    with pytest.raises(TypeError, match="option return_scores is not an option of a call on a device"):
        _device.attention(q, q, q, return_scores="probs")
    with pytest.raises(ArgumentError, match="device of seqlens_kv .meta. must be q's, cpu"):
        _device.attention(q, q, q, seqlens_kv=torch.ones(1, dtype=torch.int32, device="meta"))


def test_masks_and_segments_have_the_types_of_a_cpu(device_way):
    q, numbers = torch.randn(1, 2, 3, 8), torch.tensor([[0, 0, 7]])
    scores = torch.randn(3, 3)
    for options in (dict(segment_ids_q=numbers, segment_ids_kv=numbers),
                    dict(attn_mask=scores > 0), dict(attn_mask=scores)):
        assert torch.equal(_device.attention(q, q, q, **options), regard.attention(q, q, q, **options))
    for options, error, words in (
            (dict(attn_mask=(scores > 0).byte()), TypeError, "dtype of attn_mask .*must be bool"),
            (dict(attn_mask=scores, attn_bias=scores), ValueError, "both were given"),
            (dict(segment_ids_q=numbers + 2**32, segment_ids_kv=numbers), ValueError, "segment_ids_q holds"),
            (dict(segment_ids_q=numbers.float(), segment_ids_kv=numbers), TypeError,
             "dtype of segment_ids_q .*must be")):
        for attention in (_device.attention, regard.attention):
            with pytest.raises(error, match=words):
                attention(q, q, q, **options)


# KVCache and PagedKVCache.

KINDS = {"bf16": dict(dtype=torch.bfloat16), "i8": dict(dtype=torch.int8), "f8": dict(dtype=torch.float8_e4m3fn),
         "u4": dict(dtype=torch.uint8, hadamard=True), "mixed": dict(k_dtype=torch.int8, dtype=torch.float32)}


def caches(paged, kind, **keywords):
    extents = dict(num_pages=12, page_size=4) if paged else dict(batch_size=4, capacity=20)
    make = regard.PagedKVCache if paged else regard.KVCache
    return make(num_kv_heads=2, head_dim=64, **extents, **KINDS[kind], **keywords)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paged", [False, True])
def test_a_cache_of_a_device_is_the_cache_of_a_cpu(device_way, paged, kind):
    """Every step of both, with the same bits."""
    here, there = caches(paged, kind), caches(paged, kind, device="cuda")
    assert isinstance(there.k, torch.Tensor) and type(there._memories[0]) is _cache_memory.DeviceMemory
    rng = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=rng)

    def both(step):
        made = [step(here), step(there)]
        assert type(made[0]) is type(made[1])
        return made

    s, t = (both(lambda cache: cache.allocate())[0] for _ in range(2))
    for sequence, rows in ((s, 5), (t, 2), (s, 4)):
        k, v = normal(2, 2, rows, 64)
        both(lambda cache, sequence=sequence, k=k, v=v: cache.append(sequence, k, v.numpy()))
    u = both(lambda cache: cache.fork(s))[0]
    q, new = normal(3, 4, 1, 64), normal(3, 2, 1, 64)
    for step in ("append", "read", "evict", "read"):
        if step == "evict":
            both(lambda cache: cache.evict(u, 4))
            continue
        keywords = dict(k_new=new, v_new=new) if step == "append" else {}
        mine, theirs = (cache.attend(q, [s, t, u], is_causal=True, return_lse=True, **keywords)
                        for cache in (there, here))
        for a, b in zip(mine, theirs):
            assert torch.equal(a, b)
    both(lambda cache: cache.free(t))
    for sequence in (s, u):
        for mine, theirs in zip(there.rows(sequence), here.rows(sequence)):
            assert np.array_equal(np.asarray(mine.float() if hasattr(mine, "float") else mine),
                                  np.asarray(theirs.float() if hasattr(theirs, "float") else theirs))
    assert there.length(u) == here.length(u) == 6
    if KINDS[kind].get("dtype") != torch.bfloat16:
        assert isinstance(there.scales_k, torch.Tensor)


def test_what_a_cache_of_a_device_refuses(device_way):
    for kind in ("page", "channel"):
        with pytest.raises(ValueError, match=f"scales .'{kind}'. must be 'token' on cpu"):
            caches(True, "i8", scales=kind, device="cuda")
    with pytest.raises(ValueError, match="dtype .'bf16'. must be one of PyTorch's where device"):
        regard.KVCache(batch_size=1, capacity=2, num_kv_heads=1, head_dim=8, device="cuda")
    cache = caches(True, "bf16", device="cuda")
    s = cache.allocate()
    rows = torch.ones(2, 3, 64)
    cache.append(s, rows, rows)
    q = torch.ones(1, 4, 1, 64)
    with pytest.raises(ValueError, match=r"shared_prefix \(True\) must be False on a CUDA device"):
        cache.attend(q, [s], shared_prefix=True)
    with pytest.raises(ValueError, match=r"q \(ndarray\) must be a tensor of the cache's device"):
        cache.attend(q.numpy(), [s])
    with pytest.raises(ValueError, match="k_new is on meta"):
        cache.attend(q, [s], k_new=rows[None].to("meta"), v_new=rows[None])
    assert cache.length(s) == 3 and torch.isfinite(cache.attend(q, [s])).all()


def test_options_of_attend_on_a_device(device_way):
    """backends, and a seed of PyTorch's generator where dropout has none: another one each time."""
    cache = caches(False, "bf16", device="cuda")
    s = cache.allocate()
    rows = torch.randn(2, 16, 64)
    cache.append(s, rows, rows)
    q = torch.randn(1, 4, 8, 64, dtype=torch.bfloat16)
    cache.attend(q, [s], backends=["math", "flash"])
    assert regard.last_selection().chosen == "math"
    torch.manual_seed(1)
    first, second = (cache.attend(q, [s], dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(cache.attend(q, [s], dropout_p=0.5), first)
    with pytest.raises(regard.NoBackendError):
        cache.attend(q, [s], policy=regard.Policy(max_workspace_bytes=0, only=["math"]))
    assert torch.equal(cache.attend(q, [s], dropout_p=0.5, seed=3), cache.attend(q, [s], dropout_p=0.5, seed=3))


def test_rows_of_a_device_are_copies(device_way):
    """Of one head, whose rows follow one another in the cache."""
    cache = regard.KVCache(batch_size=1, capacity=8, num_kv_heads=1, head_dim=2, dtype=torch.float32,
                           device="cuda")
    s = cache.allocate()
    given = torch.arange(16.0).reshape(1, 8, 2)
    cache.append(s, given, given)
    k, _ = cache.rows(s)
    cache.evict(s, 1)
    assert torch.equal(k, given) and torch.equal(cache.rows(s)[1], given[:, 1:])
    assert cache.attend(torch.ones(1, 1, 1, 2), [s]).shape == (1, 1, 1, 2)


@pytest.mark.parametrize("pinned", [False, True])
def test_pinned_rows_may_change_when_append_returns(device_way, monkeypatch, pinned):
    """A copy from pinned memory would still be reading them."""
    cache = caches(False, "bf16", device="cuda")
    s = cache.allocate()
    rows = torch.randn(2, 3, 64)
    copies, to = [], torch.Tensor.to
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "is_pinned", lambda self: pinned)
        patch.setattr(torch.Tensor, "to", lambda *a, **k: copies.append(k["non_blocking"]) or to(*a, **k))
        cache.append(s, rows, rows)
    assert copies == [not pinned] * 2
    cache.attend(torch.ones(1, 2, 1, 64), [s])


def test_the_device_of_a_cache():
    extents = dict(batch_size=1, capacity=2, num_kv_heads=1, head_dim=8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="device .'cpu'. must be a CUDA device, or None"):
        regard.KVCache(**extents, device="cpu")
    with pytest.raises(ValueError, match="device .'here'. must be a device of PyTorch's"):
        regard.KVCache(**extents, device="here")
    if not regard._core.built_with_cuda():
        with pytest.raises(ValueError, match="device .'cuda'. must be None: .* no CUDA support"):
            regard.KVCache(**extents, device="cuda")


# regard.transformers.Cache.

def test_generate_by_the_way_of_a_device(device_way, monkeypatch):
    """Every kind of rows, with the tokens of a CPU."""
    model = test_transformers_cache_rows.model_of("llama")
    ids = torch.arange(1, 8)[None].repeat(2, 1)

    def generate(keywords):
        cache = test_transformers_cache_rows.cache_of(model, max_batch_size=4, **keywords)
        return model.generate(ids, past_key_values=cache, max_new_tokens=6, do_sample=False,
                              num_beams=2, eos_token_id=-1, pad_token_id=0)

    called, run = [], _device.attention
    monkeypatch.setattr(_device, "attention", lambda *a, **k: called.append(1) or run(*a, **k))
    for keywords in test_transformers_cache_rows.KINDS:
        monkeypatch.setattr(_device, "takes", lambda q: False)
        wanted = generate(keywords)
        assert not called
        monkeypatch.setattr(_device, "takes", lambda q: True)
        assert torch.equal(generate(keywords), wanted) and called
        called.clear()


# Fake tensors of a device that is not there.

@pytest.fixture
def fake(monkeypatch):
    if not torch.backends.cuda.is_built():
        pytest.skip("PyTorch is built without CUDA")
    monkeypatch.setattr(_device, "is_built", lambda: True)
    with FakeTensorMode():
        yield dict(q=torch.empty(2, 4, 1, 64, device="cuda", dtype=torch.bfloat16),
                   k=torch.empty(6, 2, 16, 64, device="cuda", dtype=torch.bfloat16),
                   v=torch.empty(6, 2, 16, 64, device="cuda", dtype=torch.bfloat16),
                   new=torch.empty(2, 2, 1, 64, device="cuda", dtype=torch.bfloat16),
                   seqlens_kv=torch.empty(2, device="cuda", dtype=torch.int32),
                   page_table=torch.empty(2, 3, device="cuda", dtype=torch.int32))


def test_fake_tensors_are_traced(fake):
    new = fake.pop("new")

    def step(q, k, v, new, seqlens_kv, page_table):
        out, lse = attention_with_kvcache(q, k, v, k_new=new, v_new=new, seqlens_kv=seqlens_kv,
                                          page_table=page_table, is_causal=True, return_lse=True)
        return out, lse, attention_with_kvcache(q, k, v, seqlens_kv=seqlens_kv + 1, page_table=page_table)

    for made in step(new=new, **fake):
        assert made.device.type == "cuda" and made.shape[:2] == (2, 4)
    graph = make_fx(step)(fake["q"], fake["k"], fake["v"], new, fake["seqlens_kv"], fake["page_table"]).graph
    called = [str(n.target) for n in graph.nodes if "regard" in str(n.target)]
    assert called == ["regard.kvcache_append_attention.default", "regard.kvcache_attention.default"]
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert compiled(new=new, **fake)[0].device.type == "cuda"


def test_fake_tensors_of_flash_attn(fake):
    q, k, new = (fake[name].transpose(1, 2) for name in ("q", "k", "new"))
    out, lse = flash_attn_with_kvcache(q, k, k.clone(), new, new, cache_seqlens=5, causal=True,
                                       block_table=fake["page_table"], return_softmax_lse=True)
    assert out.device.type == lse.device.type == "cuda" and out.shape == q.shape
    with pytest.raises(ArgumentError, match=r"device of block_table \(cpu\) must be q's, cuda:0"):
        flash_attn_with_kvcache(q, k, k, block_table=torch.empty(2, 3, dtype=torch.int32))


@pytest.mark.parametrize("operator", ["kvcache_attention", "kvcache_append_attention"])
def test_a_build_without_cuda_says_so(fake, monkeypatch, operator):
    monkeypatch.setattr(_device, "is_built", lambda: False)
    new = [fake["new"]] * 2
    match = r"device of q \(cuda:0\) must be cpu: .*no CUDA support"
    with pytest.raises(ArgumentError, match=match):
        attention_with_kvcache(*(fake[name] for name in ("q", "k", "v")), seqlens_kv=fake["seqlens_kv"],
                               page_table=fake["page_table"])
    options = (*regard.torch._kvcache.CacheOptions(fake["page_table"]),
               *regard.torch._options.Options(seqlens_kv=fake["seqlens_kv"]), "BHSD", "", False)
    rows = [fake[name] for name in ("q", "k", "v")] + (new if "append" in operator else [])
    with pytest.raises(ArgumentError, match=match):
        getattr(torch.ops.regard, operator)(*rows, *options)


def test_inductors_cuda_graphs_leave_the_operators_out(fake):
    from torch._inductor.utils import is_cudagraph_unsafe_fx_node

    def read(q, k, v, seqlens_kv, page_table):
        return attention_with_kvcache(q, k, v, seqlens_kv=seqlens_kv, page_table=page_table)

    graph = make_fx(read)(*(fake[name] for name in ("q", "k", "v", "seqlens_kv", "page_table"))).graph
    unsafe = [n for n in graph.nodes if n.op == "call_function" and is_cudagraph_unsafe_fx_node(n)]
    assert [str(n.target) for n in unsafe] == ["regard.kvcache_attention.default"]
