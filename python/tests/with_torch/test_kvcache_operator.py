"""attention_with_kvcache and its operators: eager, compiled and exported, with the same bits."""

import pytest
import torch
from torch.library import opcheck

import regard
import regard.torch
from regard.flash_attn import flash_attn_with_kvcache
from regard.torch import ArgumentError, attention_with_kvcache
from regard.torch._kvcache import CacheOptions
from regard.torch._options import Options

HEADS, HEADS_K, SIZE, ROWS = 4, 2, 8, 16


@pytest.fixture(autouse=True)
def no_compiled_code():
    """Each test compiles the same functions, of which Dynamo keeps a few versions alone."""
    torch._dynamo.reset()


def ints(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def make(dtype=torch.float32, new=1):
    """q, k and v of 2 of 3 sequences, and rows for two appends."""
    rng = torch.Generator().manual_seed(4)

    def normal(batch, heads, rows):
        return torch.randn(batch, heads, rows, SIZE, generator=rng).to(dtype)

    return dict(q=normal(2, HEADS, 1), k=normal(3, HEADS_K, ROWS), v=normal(3, HEADS_K, ROWS),
                first=normal(2, HEADS_K, new), second=normal(2, HEADS_K, new), lengths=ints(3, 0))


ANGLES = torch.linspace(0, 9, ROWS * SIZE // 2).reshape(ROWS, SIZE // 2)
OPTIONS = {
    "plain": dict(cache_batch_idx=ints(2, 0)),
    "causal": dict(cache_batch_idx=ints(2, 0), is_causal=True, return_lse=True),
    "window": dict(cache_batch_idx=ints(1, 2), window=(2, 0), softcap=2.0, softmax_scale=0.3),
    "sinks": dict(cache_batch_idx=ints(1, 2), sinks=torch.ones(HEADS), alibi_slopes=torch.ones(HEADS)),
    "rotary": dict(cache_batch_idx=ints(2, 0), rotary_cos=ANGLES.cos(), rotary_sin=ANGLES.sin(),
                   rotary_interleaved=True, positions=torch.tensor([[5], [0]], dtype=torch.int32)),
    "leftpad": dict(cache_batch_idx=ints(2, 0), cache_leftpad=ints(1, 0), is_causal=True),
    "tree": dict(cache_batch_idx=ints(2, 0), tree_mask=torch.zeros(1, 1, 1, dtype=torch.bool)),
    "mask": dict(cache_batch_idx=ints(2, 0), attn_mask=torch.arange(ROWS) % 3 > 0),
    "pages": dict(page_table=ints(2, -1, 0, 1).reshape(2, 2), diagonal="top_left", is_causal=True),
}


def step(options):
    """Two appends to one cache in one function, and a read: of each, out or (out, lse)."""
    without_rotary = {name: x for name, x in options.items()
                      if not name.startswith("rotary") and name != "positions"}

    def run(q, k, v, first, second, lengths):
        one = attention_with_kvcache(q, k, v, seqlens_kv=lengths, k_new=first, v_new=second, **options)
        q = q + (one[0] if isinstance(one, tuple) else one)
        two = attention_with_kvcache(q, k, v, seqlens_kv=lengths + 1, k_new=second, v_new=first,
                                     **options)
        read = attention_with_kvcache(q, k, v, seqlens_kv=lengths + 2, **without_rotary)
        return one, two, read

    return run


def same(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(mine, tuple):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs):
            same(a, b)
    else:
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


def same_call(function, reference, arguments):
    """The same results, and the same rows written."""
    given, other = ({name: x.clone() for name, x in arguments.items()} for _ in range(2))
    same(function(**given), reference(**other))
    for name in ("k", "v"):
        same(given[name], other[name])
        assert not torch.equal(given[name], arguments[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIONS)
def test_it_is_regard_attention(name, dtype):
    options = OPTIONS[name]
    arguments = make(dtype)

    def reference(q, k, v, first, second, lengths):
        return regard.attention(q, k, v, seqlens_kv=lengths, k_new=first, v_new=second,
                                **{"diagonal": "bottom_right", **options})

    def function(q, k, v, first, second, lengths):
        return attention_with_kvcache(q, k, v, seqlens_kv=lengths, k_new=first, v_new=second, **options)

    same_call(function, reference, arguments)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", OPTIONS)
def test_two_appends_in_a_compiled_function_keep_their_order(name, backend):
    run = step(OPTIONS[name])
    same_call(torch.compile(run, fullgraph=True, backend=backend), run, make(torch.bfloat16))


def test_a_compiled_function_serves_growing_lengths_and_other_batches():
    def run(q, k, v, first, second, lengths):
        return flash_attn_with_kvcache(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), first.transpose(1, 2),
            second.transpose(1, 2), cache_seqlens=lengths, causal=True, return_softmax_lse=True)

    compiled = torch.compile(run, fullgraph=True, dynamic=True)
    for new in (2, 5):
        for shift in (0, 1, 4):
            arguments = make(new=new)
            arguments["lengths"] += shift
            same_call(compiled, run, arguments)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_flash_attn_with_kvcache_compiles(backend, paged):
    table = ints(2, 1, 0, 3).reshape(2, 2) if paged else None
    index = None if paged else ints(3, 1)
    cos, sin = ANGLES.cos(), ANGLES.sin()

    def run(q, k, v, k_new, lengths):
        one = flash_attn_with_kvcache(q, k, v, k_new, q[:, :, ::2], cache_seqlens=lengths, causal=True,
                                      block_table=table, cache_batch_idx=index)
        two = flash_attn_with_kvcache(one, k, v, k_new + 1, one[:, :, ::2], cache_seqlens=lengths + 1,
                                      window_size=(3, 0), block_table=table, cache_batch_idx=index,
                                      rotary_cos=cos, rotary_sin=sin)
        return one, two, flash_attn_with_kvcache(q, k, v, cache_seqlens=5, block_table=table,
                                                 cache_batch_idx=index, return_softmax_lse=True)

    torch.manual_seed(2)
    arguments = dict(q=torch.randn(2, 1, HEADS, SIZE), k=torch.randn(4, ROWS, HEADS_K, SIZE),
                     v=torch.randn(4, ROWS, HEADS_K, SIZE), k_new=torch.randn(2, 1, HEADS_K, SIZE),
                     lengths=ints(3, 9))
    same_call(torch.compile(run, fullgraph=True, backend=backend), run, arguments)


class Decoder(torch.nn.Module):
    """A cache in buffers, two appends to it, and its next length."""

    def __init__(self):
        super().__init__()
        arguments = make()
        self.register_buffer("k", arguments["k"])
        self.register_buffer("v", arguments["v"])

    def forward(self, q, first, second, lengths):
        one = attention_with_kvcache(q, self.k[:2], self.v[:2], seqlens_kv=lengths, k_new=first,
                                     v_new=second, is_causal=True)
        two = attention_with_kvcache(one, self.k[:2], self.v[:2], seqlens_kv=lengths + first.shape[2],
                                     k_new=second, v_new=first, is_causal=True)
        return one, two, self.k.clone()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_export(strict, decomposed, tmp_path):
    def example(new=1):
        return tuple(make(new=new)[name] for name in ("q", "first", "second", "lengths"))

    new = torch.export.Dim("new", max=6)
    program = torch.export.export(Decoder(), example(3), strict=strict,
                                  dynamic_shapes=(None, {2: new}, {2: new}, None))
    names = [str(node.target) for node in program.graph.nodes]
    assert names.count("regard.kvcache_append_attention.default") == 2
    if decomposed:
        program = program.run_decompositions()
        assert {"k", "v"} <= set(program.graph_signature.buffers_to_mutate.values())
    torch.export.save(program, tmp_path / "decoder.pt2")
    module, eager = torch.export.load(tmp_path / "decoder.pt2").module(), Decoder()
    for count in (2, 4):
        same(tuple(module(*example(count))), eager(*example(count)))
    same(module.k, eager.k)
    same(module.v, eager.v)


@pytest.mark.parametrize("name", OPTIONS)
def test_opcheck(name):
    options = {"diagonal": "bottom_right", **OPTIONS[name]}
    return_lse = options.pop("return_lse", False)
    cache = CacheOptions(**{n: options.pop(n) for n in CacheOptions._fields if n in options})
    options["window_left"], options["window_right"] = options.pop("window", (-1, -1))
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"][None, None, None]
    given = make()
    rest = (*cache, *Options(seqlens_kv=given["lengths"] + 1, **options), "BHSD", "", return_lse)
    new = given["first"], given["second"]
    results = opcheck(torch.ops.regard.kvcache_append_attention,
                      (given["q"], given["k"], given["v"], *new, *rest))
    assert set(results.values()) == {"SUCCESS"}
    results = opcheck(torch.ops.regard.kvcache_attention, (given["q"], given["k"], given["v"], *rest))
    assert set(results.values()) == {"SUCCESS"}


def test_packed_queries_over_pages():
    given = make()
    rows, starts, table = torch.randn(5, HEADS, SIZE), ints(0, 2, 5), ints(2, 0).reshape(2, 1)
    options = dict(cu_seqlens_q=starts, page_table=table, seqlens_kv=ints(9, 4), is_causal=True,
                   return_lse=True)

    def run(rows, k, v):
        return attention_with_kvcache(rows, k, v, **options)

    expected = regard.attention(rows, given["k"], given["v"], diagonal="bottom_right", **options)
    same(run(rows, given["k"], given["v"]), expected)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    same(compiled(rows, given["k"], given["v"]), expected)


def test_a_cache_may_have_a_type_that_is_no_wider():
    given = make()
    cache = {name: given[name].to(torch.float8_e4m3fn) for name in ("k", "v", "first", "second")}
    q = given["q"].bfloat16()

    def run(q, k, v, first, second, lengths):
        return attention_with_kvcache(q, k, v, seqlens_kv=lengths, k_new=first, v_new=second,
                                      cache_batch_idx=ints(2, 0))

    with torch.no_grad():
        expected = regard.attention(q, cache["k"].clone(), cache["v"].clone(), seqlens_kv=ints(3, 0),
                                    k_new=cache["first"], v_new=cache["second"],
                                    cache_batch_idx=ints(2, 0))
    for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        mine = {name: x.clone() for name, x in cache.items()}
        same(function(q, lengths=ints(3, 0), **mine), expected)
        assert torch.equal(mine["k"][2, :, 3].float(), cache["first"][0, :, 0].float())


GIVEN = make()


def call(given=GIVEN, **changes):
    arguments = dict(q=given["q"], k=given["k"][:2], v=given["v"][:2], seqlens_kv=given["lengths"],
                     k_new=given["first"], v_new=given["second"])
    return attention_with_kvcache(**{**arguments, **changes})


@pytest.mark.parametrize("changes, match", [
    (dict(v_new=None), "k_new and v_new must both be given"),
    (dict(seqlens_kv=None), "seqlens_kv .None. must be given"),
    (dict(seqlens_kv=torch.ones(2)), "seqlens_kv .torch.float32"),
    (dict(seqlens_kv=ints(16, 0)), r"seqlens_kv\[0\]"),
    (dict(k_new=torch.ones(2, HEADS_K, 1, SIZE).half()), "dtype of k_new"),
    (dict(q=torch.ones(2, HEADS, SIZE)), "q .* must have 4 dimensions"),
    (dict(q=torch.ones(2, HEADS, 1, SIZE, device="meta")), "device of q .meta. must be cpu"),
    (dict(q=torch.ones(2, HEADS, 1, SIZE, requires_grad=True)), "q .requires a gradient"),
    (dict(rotary_cos=ANGLES), "rotary_sin .None."),
    (dict(page_table=ints(0, 1)), "page_table .* 2 dimensions"),
    (dict(diagonal="left"), "diagonal .'left'."),
    (dict(softcap=-1.0), "softcap"),
])
def test_bad_input_is_refused_and_nothing_is_written(changes, match):
    given = make()
    k, v = given["k"][:2].clone(), given["v"][:2].clone()
    with pytest.raises(ArgumentError, match=match):
        call(**{"k": k, "v": v, **changes})
    assert torch.equal(k, given["k"][:2]) and torch.equal(v, given["v"][:2])


def test_errors_of_compiled_code_are_the_same():
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with pytest.raises(ArgumentError, match=r"seqlens_kv\[0\]"):  # when it runs
        compiled(seqlens_kv=ints(16, 0))
    with pytest.raises(Exception, match="softcap"):  # while it is traced
        compiled(softcap=-1.0)


def test_scopes():
    kernel = regard.torch.sdpa_kernel
    with kernel("cudnn"), pytest.raises(regard.NoBackendError):
        call()
    with kernel("math"):
        assert call().shape == (2, HEADS, 1, SIZE)
        assert regard.last_selection().chosen == "math"
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with kernel("math"):
        compiled()
        assert regard.last_selection().chosen == "math"
    with kernel("cudnn"), pytest.raises(regard.NoBackendError):
        compiled()
    with regard.torch.exportable(), pytest.raises(ArgumentError, match=r"exportable\(\)"):
        call()


@pytest.mark.parametrize("scope", [torch.no_grad, torch.inference_mode])
def test_writes_count_as_mutation(scope):
    k, v = (torch.zeros(2, HEADS_K, ROWS, SIZE) for _ in range(2))
    before = k._version
    with scope():
        call(k=k, v=v)
        assert k._version == before + 1
        call(k=k, v=v, k_new=None, v_new=None)
        assert k._version == before + 1
    with torch.inference_mode():
        call(k=torch.zeros(2, HEADS_K, ROWS, SIZE), v=torch.zeros(2, HEADS_K, ROWS, SIZE))
