"""regard.transformers.Cache: generate's tokens are those of Transformers' own caches."""

import pytest
import torch
import transformers

import regard
import regard.torch
import regard.transformers
from regard import _cached_rows
from regard.torch import ArgumentError


regard.transformers.register()  # other tests count on it, too

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048)
PAGES = tuple({"page_size": size} for size in (1, 16, 64))
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=6),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"]),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=16, sliding_window=7, num_local_experts=2, num_experts_per_tok=1),
}


@pytest.fixture(autouse=True)
def memory_of_nan(monkeypatch):
    """Rows that nobody has written are NaN: none may be read, nor a scale of one."""
    allocate = _cached_rows.Rows._allocate

    def poisoned(self, entries, rows):
        made = allocate(self, entries, rows)
        for memory in made:
            if memory.dtype == torch.int8:
                memory.fill_(-128)
            else:
                memory.copy_(torch.full(memory.shape, float("nan")))
        return made

    monkeypatch.setattr(_cached_rows.Rows, "_allocate", poisoned)


def model_of(name, dtype=torch.float32):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="regard",
                                                          dtype=dtype)
    return model.eval()


def tokens(model, cache, inputs=None, mask=None, **keywords):
    inputs = torch.arange(1, 13)[None] if inputs is None else inputs
    made = model.generate(inputs, attention_mask=torch.ones_like(inputs) if mask is None else mask,
                          past_key_values=cache, max_new_tokens=16, do_sample=False, pad_token_id=0,
                          eos_token_id=-1, return_dict_in_generate=True, output_logits=True, **keywords)
    return made.sequences, torch.stack(made.logits)


def padded_on_the_left():
    """Two prompts and their mask, the second of five tokens."""
    inputs = torch.arange(1, 19).reshape(2, 9)
    mask = torch.ones_like(inputs)
    mask[1, :4] = 0
    return inputs, mask


def cache_of(model, **keywords):
    return regard.transformers.Cache(model.config, **{"dtype": "f32", **keywords})


@pytest.mark.parametrize("options", [{}, {"max_cache_len": 40}, *PAGES])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_dynamic_cache(name, options):
    model = model_of(name)
    expected, logits = tokens(model, transformers.DynamicCache(config=model.config))
    found, found_logits = tokens(model, cache_of(model, **options))
    assert torch.equal(found, expected)
    torch.testing.assert_close(found_logits, logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, *PAGES])
@pytest.mark.parametrize("name", CONFIGS)
def test_left_padding_and_beams(name, options):
    model = model_of(name)
    inputs, mask = padded_on_the_left()
    for beams in (1, 3):
        expected, _ = tokens(model, None, inputs, mask, num_beams=beams)
        cache = cache_of(model, max_batch_size=2 * beams, **options)
        found, _ = tokens(model, cache, inputs, mask, num_beams=beams)
        assert torch.equal(found, expected), beams


def test_a_model_of_bf16_has_the_bits_of_dynamic_cache():
    model = model_of("llama", torch.bfloat16)
    expected, logits = tokens(model, transformers.DynamicCache(config=model.config))
    found, found_logits = tokens(model, regard.transformers.Cache(model.config))
    assert torch.equal(found, expected)
    assert torch.equal(found_logits, logits)


@pytest.mark.parametrize("dtype, most", [("bf16", 2e-2), ("f16", 2e-3), ("int8", 0.02), ("i8", 0.02),
                                         ("f8e4m3", 0.1), ("f8e5m2", 0.2)])
def test_rows_of_another_type_than_the_model(dtype, most):
    model = model_of("llama")
    inputs = torch.arange(1, 31)[None]
    with torch.no_grad():
        expected = model(inputs, past_key_values=cache_of(model)).logits
        cache = cache_of(model, dtype=dtype)
        found = model(inputs, past_key_values=cache).logits
    error = (found - expected).abs().max() / expected.abs().max()
    assert 0 < error < most, float(error)
    memories = cache.layers[0].rows.memories
    assert memories[0].dtype == memories[1].dtype == cache.layers[0].dtype != torch.float32
    assert cache.layers[0].keys.dtype == torch.float32  # as the model gave them


def test_a_cache_grows_and_keeps_its_rows():
    model = model_of("llama")
    inputs = torch.arange(700)[None] % 97
    with torch.no_grad():
        whole = model(inputs, past_key_values=cache_of(model)).logits
        cache, parts, begin = cache_of(model), [], 0
        for size in (1, 100, 155, 1, 300, 143):
            parts.append(model(inputs[:, begin:begin + size], past_key_values=cache).logits)
            begin += size
            assert cache.get_seq_length() == begin
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_crop_and_reset():
    model = model_of("llama")
    inputs = torch.arange(1, 41)[None]
    cache = cache_of(model, max_cache_len=60)
    with torch.no_grad():
        expected = model(inputs, past_key_values=cache).logits
        cache.crop(-15)
        assert cache.get_seq_length() == 25
        again = model(inputs[:, 25:], past_key_values=cache).logits
        torch.testing.assert_close(again, expected[:, 25:], rtol=1e-5, atol=1e-5)
        cache.reset()
        assert cache.get_seq_length() == 0
        torch.testing.assert_close(model(inputs, past_key_values=cache).logits, expected)


def test_prompt_lookup_decoding():
    model = model_of("llama")
    inputs = torch.arange(1, 6).repeat(4)[None]
    expected, _ = tokens(model, None, inputs)
    found, _ = tokens(model, cache_of(model), inputs, prompt_lookup_num_tokens=3)
    assert torch.equal(found, expected)


def test_what_is_too_much_is_refused_before_a_row_is_written():
    model = model_of("llama")
    cache = cache_of(model, max_cache_len=20)
    inputs = torch.arange(1, 16)[None]
    with torch.no_grad():
        model(inputs, past_key_values=cache)
        before = [layer.keys.clone() for layer in cache.layers]
        with pytest.raises(regard.CacheFullError, match="21 rows are more than max_cache_len, 20"):
            model(inputs[:, :6], past_key_values=cache)
        assert cache.get_seq_length() == 15
        for layer, rows in zip(cache.layers, before):
            assert torch.equal(layer.keys, rows)
        with pytest.raises(ArgumentError, match=r"the batch \(1\) must be the cache's, 2"):
            cache = cache_of(model, max_batch_size=2)
            model(inputs.repeat(2, 1), past_key_values=cache)
            model(inputs, past_key_values=cache)
        with pytest.raises(regard.CacheFullError, match="batch .2. must be at most max_batch_size, 1"):
            model(inputs.repeat(2, 1), past_key_values=cache_of(model))


@pytest.mark.parametrize("keywords, text", [
    ({"dtype": "int4"}, "dtype .'int4'. must be one of f32, bf16"),
    ({"page_size": 0}, "page_size .0. must be at least 1"),
    ({"max_batch_size": 0}, "max_batch_size .0. must be at least 1"),
    ({"max_cache_len": -1}, "max_cache_len .-1. must be at least 1"),
])
def test_bad_arguments(keywords, text):
    with pytest.raises(ArgumentError, match=text):
        regard.transformers.Cache(CONFIGS["llama"](), **keywords)


def test_a_layer_that_it_cannot_hold():
    config = transformers.Qwen3NextConfig(num_hidden_layers=4)
    with pytest.raises(ArgumentError, match="layer 0 of the model .linear_attention."):
        regard.transformers.Cache(config)


def test_rows_wider_than_the_model():
    model = model_of("llama", torch.bfloat16)
    with pytest.raises(ArgumentError, match="dtype .torch.float32. must be no wider than that of the "
                                            "model's keys, torch.bfloat16"):
        tokens(model, cache_of(model))


def test_gradients_through_contiguous_rows():
    inputs = torch.arange(1, 13)[None]
    gradients = []
    for cached in (True, False):
        model = model_of("llama")
        model(inputs, past_key_values=cache_of(model) if cached else None).logits.square().sum().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad)
    torch.testing.assert_close(*gradients)
