"""attention_with_kvcache over rows of 8 and 4 bits with scales, and of keys times the Hadamard matrix:
eager, compiled and exported, with the bits of regard.attention, scales written in place."""

import numpy as np
import pytest
import torch
from torch.library import opcheck

import regard
import regard.torch
from regard.torch import ArgumentError, attention_with_kvcache
from regard.torch._kvcache import CacheOptions
from regard.torch._options import Options

HEADS, HEADS_K, SIZE, ROWS = 4, 2, 64, 16
TYPES = {"i8": torch.int8, "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "u4": torch.uint8}
CODES = {
    "i8": dict(k="i8", v="i8"),
    "f8": dict(k="f8e4m3", v="f8e5m2"),
    "u4": dict(k="u4", v="u4"),
    "u4 rotated": dict(k="u4", v="u4", hadamard=True),
    "u4 beside i8": dict(k="i8", v="u4", hadamard=True),
    "u4 beside bf16": dict(k=None, v="u4"),
    "bf16 rotated": dict(k=None, v=None, hadamard=True),
    "channels": dict(k="i8", v="u4", channels=True),
    "u4 in pages": dict(k="u4", v="u4", hadamard=True, pages=True),
    "i8 in pages": dict(k="i8", v="i8", pages=True),
}


@pytest.fixture(autouse=True)
def no_compiled_code():
    """Each test compiles the same functions, of which Dynamo keeps a few versions alone."""
    torch._dynamo.reset()


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def make(name):
    """What calls change, q and rows among them, and the options that they share."""
    words = CODES[name]
    rng = torch.Generator().manual_seed(4)

    def normal(heads):
        return torch.randn(2, heads, 1, SIZE, generator=rng).bfloat16()

    given = dict(q=normal(HEADS), first=normal(HEADS_K), second=normal(HEADS_K), lengths=ints(3, 0))
    options = {"hadamard": True} if words.get("hadamard") else {}
    options.update(page_table=ints(2, -1, 0, 1).reshape(2, 2)) if words.get("pages") else \
        options.update(cache_batch_idx=ints(2, 0))
    for letter in "kv":
        kind = words[letter]
        if kind is None:
            given[letter] = torch.zeros(3, HEADS_K, ROWS, SIZE, dtype=torch.bfloat16)
            continue
        columns = SIZE // 2 if kind == "u4" else SIZE
        given[letter] = torch.zeros(3, HEADS_K, ROWS, columns, dtype=TYPES[kind])
        if kind == "u4":
            options[f"{letter}_dtype"] = "u4"
        if letter == "k" and words.get("channels"):
            options["channel_scales_k"] = torch.full((HEADS_K, SIZE), 0.03)
        else:
            groups = [4] if kind == "u4" else []
            given[f"scales_{letter}"] = torch.ones(3, HEADS_K, ROWS, *groups)
    return given, options


def copies(given):
    return {name: x.clone() for name, x in given.items()}


def same(mine, theirs):
    assert mine.dtype == theirs.dtype and torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def append(q, first, second, lengths, k, v, function=attention_with_kvcache, **keywords):
    return function(q, k, v, seqlens_kv=lengths, k_new=first, v_new=second, diagonal="bottom_right",
                    **keywords)


def stepper(options):
    """Two appends to one cache in one function, and a read."""

    def run(q, first, second, lengths, k, v, **scales):
        one = append(q, first, second, lengths, k, v, **scales, **options)
        two = append(q + one, second, first, lengths + 1, k, v, **scales, **options)
        return one, two, attention_with_kvcache(q, k, v, seqlens_kv=lengths + 2, **scales, **options)

    return run


def same_call(function, reference, given):
    """The same results, and the same codes and scales written; out."""
    mine, theirs = copies(given), copies(given)
    with torch.no_grad():
        for a, b in zip(function(**mine), reference(**theirs)):
            same(a, b)
    for name in given:
        same(mine[name], theirs[name])
        is_memory = name in ("k", "v", "scales_k", "scales_v")
        assert torch.equal(mine[name].float(), given[name].float()) != is_memory
    return mine


@pytest.mark.parametrize("name", CODES)
def test_it_is_regard_attention(name):
    given, options = make(name)

    def run(function):
        return lambda **tensors: (append(**tensors, **options, function=function),)

    same_call(run(attention_with_kvcache), run(regard.attention), given)


@pytest.mark.parametrize("name, backend", [*((name, "aot_eager") for name in CODES),
                                           ("u4 in pages", "inductor"), ("f8", "inductor")])
def test_two_appends_in_a_compiled_function_keep_their_order(name, backend):
    given, options = make(name)
    run = stepper(options)
    same_call(torch.compile(run, fullgraph=True, backend=backend), run, given)


@pytest.mark.parametrize("name", [name for name in CODES if name != "f8"])  # opcheck multiplies rows
def test_opcheck(name):
    given, options = make(name)
    cache = CacheOptions(**{n: x for n, x in {**given, **options}.items() if n in CacheOptions._fields})
    rest = (*cache, *Options(seqlens_kv=given["lengths"] + 1, diagonal="bottom_right"), "BHSD", "", False)
    q, k, v = (given[letter] for letter in "qkv")
    for op, new in ((torch.ops.regard.kvcache_append_attention, (given["first"], given["second"])),
                    (torch.ops.regard.kvcache_attention, ())):
        assert set(opcheck(op, (q, k, v, *new, *rest)).values()) == {"SUCCESS"}


class Decoder(torch.nn.Module):
    """A cache of codes and scales in buffers, and two appends to it."""

    def __init__(self, name):
        super().__init__()
        given, self.options = make(name)
        self.memory = [n for n in ("k", "v", "scales_k", "scales_v") if n in given]
        for n in self.memory:
            self.register_buffer(n, given[n])

    def forward(self, q, first, second, lengths):
        memory = {n: getattr(self, n) for n in self.memory}
        return stepper(self.options)(q, first, second, lengths, **memory)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", ["f8", "u4 in pages"])
def test_export(name, decomposed):
    given, _ = make(name)
    example = tuple(given[n] for n in ("q", "first", "second", "lengths"))
    with torch.no_grad():
        program = torch.export.export(Decoder(name), example)
        names = [str(node.target) for node in program.graph.nodes]
        assert names.count("regard.kvcache_append_attention.default") == 2
        if decomposed:
            program = program.run_decompositions()
            assert {"k", "v", "scales_k", "scales_v"} <= \
                set(program.graph_signature.buffers_to_mutate.values())
        module, eager = program.module(), Decoder(name)
        for mine, theirs in zip(module(*example), eager(*example)):
            same(mine, theirs)
    for n in ("k", "v", "scales_k", "scales_v"):
        same(getattr(module, n), getattr(eager, n))
        assert not torch.equal(getattr(eager, n).float(), getattr(Decoder(name), n).float())


@pytest.mark.parametrize("name, changes, match", [
    ("u4", dict(k_dtype="u8"), r"k_dtype \('u8'\) must be 'u4'"),
    ("u4", dict(k_dtype=None), "dtype of k .uint8"),
    ("u4", dict(scales_v=None), "scales_v .None. must be given: v holds codes, torch.uint8"),
    ("u4", dict(scales_k=torch.ones(3, HEADS_K, ROWS, 2)), "scales_k"),
    ("u4", dict(scales_k=torch.ones(3, HEADS_K, ROWS, 4).double()), "dtype of scales_k .torch.float64"),
    ("i8", dict(scales_k=torch.ones(3, HEADS_K, ROWS, device="meta")), "device of scales_k .meta"),
    ("i8", dict(scales_k=torch.ones(3, HEADS_K, ROWS, requires_grad=True)), "scales_k .requires a grad"),
    ("i8", dict(first=torch.ones(2, HEADS_K, 1, SIZE)), "dtype of k_new .torch.float32. must be q's"),
    ("u4 beside bf16", dict(first=torch.ones(2, HEADS_K, 1, SIZE)), "dtype of k_new .* the cache's"),
    ("i8", dict(first=torch.full((2, HEADS_K, 1, SIZE), np.nan).bfloat16()), "finite"),
])
def test_bad_input_is_refused_and_nothing_is_written(name, changes, match):
    given, options = make(name)
    arguments = copies(given)
    with pytest.raises((ArgumentError, TypeError), match=match):
        append(**{**arguments, **options, **changes})
    for n, x in given.items():
        same(arguments[n], x)


def test_shapes_are_checked_while_a_graph_is_traced():
    given, options = make("u4")
    compiled = torch.compile(append, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="scales_k"):
        compiled(**{**given, **options, "scales_k": torch.ones(3, HEADS_K, ROWS, 2)})


def test_writes_of_scales_count_as_mutation():
    given, options = make("u4")
    before = [given[n]._version for n in ("k", "v", "scales_k", "scales_v")]
    append(**given, **options)
    assert [given[n]._version for n in ("k", "v", "scales_k", "scales_v")] == [n + 1 for n in before]


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_the_memory_of_a_cache_serves_compiled_code(dtype, paged):
    """The scales of a cache are NumPy arrays, whose memory tensors share."""
    shared = dict(num_kv_heads=HEADS_K, head_dim=SIZE, dtype=dtype, hadamard=True)
    caches = [regard.PagedKVCache(num_pages=2, page_size=16, **shared) if paged else
              regard.KVCache(batch_size=1, capacity=32, **shared) for _ in range(2)]
    rows = torch.randn(2, HEADS_K, 5, SIZE, generator=torch.Generator().manual_seed(1))
    for cache in caches:
        cache.append(cache.allocate(), *rows)
    given, _ = make("u4")
    q, first, second = (given[n][:1] for n in ("q", "first", "second"))
    cache = caches[0]
    words = dict(scales_k=torch.from_numpy(cache.scales_k), scales_v=torch.from_numpy(cache.scales_v),
                 hadamard=True)
    words.update(dict(k_dtype="u4", v_dtype="u4") if dtype == torch.uint8 else {})
    words.update(dict(page_table=ints(0, 1)[None]) if paged else dict(cache_batch_idx=ints(0)))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(q, first, second, lengths):
        return append(q, first, second, lengths, cache.k, cache.v, **words)

    with torch.no_grad():
        out = step(q, first, second, ints(5))
    same(out, caches[1].attend(q, [0], k_new=first, v_new=second))
    same(cache.k, caches[1].k)
    np.testing.assert_array_equal(cache.scales_v, caches[1].scales_v)
