"""regard.transformers.Cache in pages and in 8 bits, held to Transformers' own caches and to tensors that
keep everything."""

import copy
import random

import numpy
import pytest
import torch
import transformers
from test_transformers_cache import CONFIGS, cache_of, memory_of_nan, model_of, tokens  # noqa: F401

import regard
import regard.transformers
from regard import _cached_rows
from regard.torch import ArgumentError

KINDS = ({"page_size": 1}, {"page_size": 16}, {"dtype": "int8"}, {"dtype": "int8", "page_size": 5})

# A step of int8 at the greatest element of a row; half a step of 8-bit floats.
BOUNDS = {"int8": 1 / 127, "f8e4m3": 1 / 16, "f8e5m2": 1 / 8}


@pytest.mark.parametrize("page_size", [None, 1, 16])
@pytest.mark.parametrize("name, dtype", [
    (name, dtype) for name in CONFIGS for dtype in BOUNDS
    if name != "gpt_oss" or dtype == "int8"])  # with 8-bit floats it chooses other experts
def test_logits_of_8_bits(name, dtype, page_size):
    """The bounds that docs/transformers.md states, over a prompt and tokens after it."""
    model = model_of(name)
    inputs = torch.arange(1, 61)[None]
    with torch.no_grad():
        expected = model(inputs).logits
        cache = cache_of(model, dtype=dtype, page_size=page_size)
        parts = [model(inputs[:, :50], past_key_values=cache).logits]
        parts += [model(inputs[:, at:at + 1], past_key_values=cache).logits for at in range(50, 60)]
    error = (torch.cat(parts, 1) - expected).abs().max() / expected.abs().max()
    assert 0 < error < BOUNDS[dtype], float(error)


def test_8_bits_in_pages_have_the_bits_of_contiguous_ones():
    model = model_of("gpt_oss")
    _, expected = tokens(model, cache_of(model, dtype="int8"))
    for page_size in (16, 64):
        _, found = tokens(model, cache_of(model, dtype="int8", page_size=page_size))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keywords", KINDS, ids=str)
def test_crop_and_reset(keywords):
    model = model_of("llama")
    inputs = torch.arange(1, 41)[None]
    cache = cache_of(model, max_cache_len=60, **keywords)
    with torch.no_grad():
        expected = model(inputs, past_key_values=cache).logits
        cache.crop(-15)
        assert cache.get_seq_length() == 25
        again = model(inputs[:, 25:], past_key_values=cache).logits
        torch.testing.assert_close(again, expected[:, 25:], rtol=1e-5, atol=1e-5)
        cache.reset()
        assert cache.get_seq_length() == 0 and cache.layers[0].keys is None
        torch.testing.assert_close(model(inputs, past_key_values=cache).logits, expected)


@pytest.mark.parametrize("keywords", [{}, *KINDS], ids=str)
def test_assisted_decoding_and_prompt_lookup(keywords):
    model = model_of("llama")
    torch.manual_seed(1)
    assistant = transformers.AutoModelForCausalLM.from_config(
        model.config, attn_implementation="regard").eval()
    inputs = torch.arange(1, 6).repeat(4)[None]
    expected, _ = tokens(model, cache_of(model, **keywords), inputs)
    for further in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        found, _ = tokens(model, cache_of(model, **keywords), inputs, **further)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("keywords", [{}, *KINDS], ids=str)
def test_a_conversation_goes_on_and_forks(keywords):
    model = model_of("mistral")

    def conversation(cache):
        first, _ = tokens(model, cache)
        made = []
        for answer in ([[60, 61, 62]], [[70, 71, 72, 73, 74]]):
            fork = copy.deepcopy(cache)
            made += [tokens(model, fork, torch.cat([first, torch.tensor(answer)], 1))]
        return made

    exact = keywords.get("dtype") != "int8"
    expected = conversation(transformers.DynamicCache() if exact else cache_of(model, dtype="int8"))
    made = conversation(cache_of(model, **keywords))
    for (found, logits), (wanted, wanted_logits) in zip(made, expected):
        assert torch.equal(found, wanted)
        torch.testing.assert_close(logits, wanted_logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keywords", KINDS, ids=str)
def test_what_is_too_much_is_refused_before_a_row_is_written(keywords):
    model = model_of("llama")
    cache = cache_of(model, max_cache_len=20, **keywords)
    inputs = torch.arange(1, 16)[None]

    def memories():
        return [memory.clone() for layer in cache.layers for memory in layer.rows.memories]

    with torch.no_grad():
        model(inputs, past_key_values=cache)
        before = memories()
        with pytest.raises(regard.CacheFullError, match="21 rows are more than max_cache_len, 20"):
            model(inputs[:, :6], past_key_values=cache)
        with pytest.raises(regard.CacheFullError, match="batch .2. must be at most max_batch_size, 1"):
            cache.batch_repeat_interleave(2)
        assert cache.get_seq_length() == 15
        for memory, then in zip(memories(), before):
            assert torch.equal(memory.view(torch.uint8), then.view(torch.uint8))
        model(inputs[:, :5], past_key_values=cache)
        assert cache.get_seq_length() == 20


def test_a_row_that_cannot_be_quantised_is_not_kept():
    layer = cache_of(model_of("llama"), dtype="int8").layers[0]
    rows = torch.randn(1, 2, 3, 16)
    layer.update(rows, rows)[0].clone()  # the copy writes the rows
    bad = rows.clone()
    bad[0, 1, 2, 3] = float("inf")
    keys, values = layer.update(bad, rows)
    with pytest.raises(ArgumentError, match=r"k_new\[0,1,2,3\] .inf., expected finite"):
        keys.clone()
    assert layer.get_seq_length() == 3
    assert layer.update(rows, rows)[0].clone().isfinite().all()


def stale(cache, change):
    keys, _ = cache.layers[0].update(torch.randn(2, 2, 3, 16), torch.randn(2, 2, 3, 16))
    change(cache)
    return keys


@pytest.mark.parametrize("change", [lambda cache: cache.crop(-1), lambda cache: cache.reorder_cache(
    torch.tensor([1, 0]))], ids=["crop", "reorder"])
def test_rows_of_before_a_change_are_refused(change):
    keys = stale(cache_of(model_of("llama"), page_size=4, max_batch_size=2), change)
    with pytest.raises(ArgumentError, match="must be used before the cache is cropped or reordered"):
        keys + 1


@pytest.mark.parametrize("page_size", [None, 2])
def test_rows_of_an_update_before_another_are_read_alone(page_size):
    layer = cache_of(model_of("llama"), page_size=page_size).layers[0]
    attention = transformers.AttentionInterface()["regard"]
    module = type("Attention", (), {"is_causal": True})()
    first, second, q = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 2, 16), torch.randn(1, 4, 1, 16)
    then = layer.update(first, first)
    now = layer.update(second, second)
    both = torch.cat([first, second], 2)
    for handles, rows in ((then, first), (now, both), (then, first)):
        wanted, _ = attention(module, q, rows, rows, None)
        torch.testing.assert_close(attention(module, q, *handles, None)[0], wanted)
        assert torch.equal(handles[0].clone(), rows)


def test_rows_are_not_written_through_a_handle():
    keys = stale(cache_of(model_of("llama"), max_batch_size=2), lambda cache: None)
    with pytest.raises(ArgumentError, match="writes to rows of a cache .of shape .2, 2, 3, 16.*clone"):
        keys.mul_(2)
    torch.zeros(2, 2, 3, 16).copy_(keys)  # which reads it
    assert "RowHandle" in repr(keys)


def test_a_gradient_needs_contiguous_rows():
    model = model_of("llama")
    for keywords in KINDS:
        with pytest.raises(ArgumentError, match=r"requires a gradient.*torch.no_grad"):
            model(torch.arange(5)[None], past_key_values=cache_of(model, **keywords))


@pytest.mark.parametrize("keywords", [{}, *KINDS], ids=str)
def test_other_implementations_get_the_numbers(keywords):
    model = model_of("gemma3")
    expected, logits = tokens(model, cache_of(model, **keywords))
    for name in ("eager", "sdpa", "regard_math", "regard_efficient", "regard_flash"):
        model.set_attn_implementation(name)
        found, found_logits = tokens(model, cache_of(model, **keywords))
        assert torch.equal(found, expected), name
        torch.testing.assert_close(found_logits, logits, rtol=1e-4, atol=1e-4)


def two_calls(model, cache, **further):
    inputs = torch.arange(1, 13)[None]
    return torch.cat([model(part, past_key_values=cache, **further).logits
                      for part in (inputs[:, :8], inputs[:, 8:])], 1)


@pytest.mark.parametrize("keywords", [{}, *KINDS], ids=str)
def test_weights_and_autocast(keywords):
    model = model_of("llama")
    with torch.no_grad():
        expected = two_calls(model, cache_of(model, **keywords))
        found = two_calls(model, cache_of(model, **keywords), output_attentions=True)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            found = two_calls(model, cache_of(model, **keywords))
            whole = model(torch.arange(1, 13)[None]).logits
        torch.testing.assert_close(found, whole, rtol=0.02, atol=0.02)


def test_compiled_code():
    model = model_of("llama")
    torch._dynamo.reset()  # what is compiled counts for other tests
    with torch.no_grad():
        expected = two_calls(model, cache_of(model, page_size=16))
        found = two_calls(torch.compile(model, backend="eager"), cache_of(model, page_size=16))
    torch._dynamo.reset()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_cache_of_inference_mode_is_used_outside_of_it():
    model = model_of("llama")
    inputs = torch.arange(1, 13)[None]
    for keywords in KINDS:
        with torch.inference_mode():
            cache = cache_of(model, **keywords)
            model(inputs, past_key_values=cache)
        with torch.no_grad():
            cache.crop(-4)
            cache.reorder_cache(torch.tensor([0]))
            found = model(inputs[:, 8:], past_key_values=cache).logits
            torch.testing.assert_close(found, model(inputs).logits[:, 8:], rtol=0.02, atol=0.02)


def test_beams_share_pages_until_they_append():
    rows = cache_of(model_of("llama"), page_size=4, max_batch_size=3).layers[0]
    one = torch.randn(1, 2, 10, 16)
    rows.update(one, -one)[0].clone()
    rows.batch_repeat_interleave(3)
    pages = rows.rows.page_table
    assert (pages == pages[0]).all() and pages.shape == (3, 3)
    new = torch.randn(3, 2, 1, 16)
    keys = rows.update(new, -new)[0].clone()
    pages = rows.rows.page_table
    assert (pages[:, :2] == pages[0, :2]).all()  # full pages stay shared
    assert len(set(pages[:, 2].tolist())) == 3   # the last one is each beam's own
    torch.testing.assert_close(keys, torch.cat([one.expand(3, -1, -1, -1), new], 2))
    rows.batch_select_indices(torch.tensor([2]))
    assert rows.rows.page_table.tolist() == [pages[2].tolist()]
    rows.batch_repeat_interleave(2)
    rows.update(new[:2], new[:2])
    assert len(rows.rows.memories[0]) <= 9  # pages that nobody has are taken again


def random_change(random_, layer, rows):
    """Does something to the layer; returns what the tensors are then."""
    batch, _, length, _ = rows[0].shape
    what = random_.choice(["append"] * 5 + ["crop", "reorder", "repeat", "select", "mask"])
    if what == "append" or length == 0:
        count = random_.choice([1, 1, 1, 2, 7])
        new = [torch.randn(batch, 2, count, dim) for dim in (8, 24)]
        layer.update(*new)
        return [torch.cat(pair, 2) for pair in zip(rows, new)]
    if what == "crop":
        count = random_.randint(0, length)
        layer.crop(-count)
        return [x[:, :, :length - count] for x in rows]
    chosen = torch.tensor([random_.randrange(batch) for _ in range(batch)])
    if what == "repeat" and batch <= 3:
        layer.batch_repeat_interleave(2)
        chosen = torch.arange(batch).repeat_interleave(2)
    elif what == "mask":
        kept = torch.arange(batch) != random_.randrange(batch) if batch > 1 else torch.tensor([True])
        layer.batch_select_indices(kept)
        chosen = kept.nonzero()[:, 0]
    elif what == "select":
        chosen = chosen[:random_.randint(1, batch)]
        layer.batch_select_indices(chosen)
    else:
        layer.reorder_cache(chosen)
    return [x[chosen] for x in rows]


def check_pages(rows):
    """Each page is counted for the sequences that have it, and no sequence has more than it needs."""
    if isinstance(rows, _cached_rows.PagedRows):
        table = rows.page_table
        assert table.shape == (rows.batch, -(-rows.length // rows.page_size))
        users = numpy.bincount(table.ravel(), minlength=len(rows._users))
        assert (rows._users == users).all() and len(rows._users) == len(rows.memories[0])
        assert sorted(rows._free) == numpy.flatnonzero(users == 0).tolist()


@pytest.mark.parametrize("page_size", [None, 1, 3, 16])
@pytest.mark.parametrize("dtype, tolerance", [("f32", 0), ("int8", 0.02)])
def test_random_changes_against_tensors(dtype, tolerance, page_size):
    module = type("Attention", (), {"is_causal": True})()
    attention = transformers.AttentionInterface()["regard"]
    for seed in range(8):
        random_ = random.Random(seed)
        torch.manual_seed(seed)
        layer = regard.transformers.Cache(CONFIGS["llama"](), dtype, page_size, 6).layers[0]
        rows = [torch.randn(2, 2, 4, dim) for dim in (8, 24)]
        layer.update(*rows)
        for _ in range(60):
            rows = random_change(random_, layer, rows)
            length = rows[0].shape[2]
            assert layer.get_seq_length() == length
            check_pages(layer.rows)
            if random_.random() < 0.5 and length:
                q = torch.randn(len(rows[0]), 4, 1, 8)
                mask = torch.rand(len(q), 1, 1, length) < 0.7 if random_.random() < 0.5 else None
                if mask is not None:
                    mask[..., -1] = True
                found, _ = attention(module, q, layer.keys, layer.values, mask)
                wanted, _ = attention(module, q, *rows, mask)
                torch.testing.assert_close(found, wanted, rtol=0, atol=max(5 * tolerance, 1e-5))
            if random_.random() < 0.3 and length:
                for found, wanted in zip((layer.keys, layer.values), rows):
                    torch.testing.assert_close(found.clone(), wanted, rtol=0, atol=tolerance)


def test_compiled_code_on_a_device_without_regard_writes_as_eager_code_does():
    """Contiguous rows; meta stands for such a device."""
    model = model_of("llama")
    rows = torch.ones(1, 2, 3, 16, device="meta")
    for update in ("update", "_update_numbers"):
        layer = cache_of(model).layers[0]
        for length in (3, 6):
            keys, values = getattr(layer, update)(rows, rows)
            assert keys.shape == values.shape == (1, 2, length, 16) and keys.device.type == "meta"
    layer = cache_of(model, page_size=4).layers[0]
    with pytest.raises(ArgumentError, match="device of key_states .meta. must be cpu"):
        layer._update_numbers(rows, rows)
