"""Transformers' own caches, and pairs of caches, with regard's attention: generate's tokens are those of
eager attention."""

import pytest
import torch
import transformers
from test_transformers_cache import CONFIGS, model_of, padded_on_the_left, tokens

import regard
import regard.transformers

OWN = {
    "dynamic": lambda config: transformers.DynamicCache(config=config),
    "dynamic without a config": lambda config: transformers.DynamicCache(),
    "static": lambda config: transformers.StaticCache(config=config, max_cache_len=40),
}
SIZES = dict(vocab_size=97, d_model=64, decoder_start_token_id=0)
PAIRS = {
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
        **SIZES, d_kv=16, d_ff=96, num_layers=2, num_heads=4)),
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(
        **SIZES, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=96,
        decoder_attention_heads=4, decoder_ffn_dim=96, max_position_embeddings=128,
        forced_eos_token_id=None)),
}
KINDS = ({}, {"page_size": 1}, {"page_size": 16}, {"dtype": "int8"}, {"dtype": "int8", "page_size": 4})


@pytest.mark.parametrize("cache", OWN)
@pytest.mark.parametrize("name", CONFIGS)
def test_sliding_and_full_layers(name, cache):
    model = model_of(name)
    inputs, mask = padded_on_the_left()
    found, logits = tokens(model, OWN[cache](model.config), inputs, mask, disable_compile=True)
    model.set_attn_implementation("eager")
    expected, eager = tokens(model, transformers.DynamicCache(config=model.config), inputs, mask)
    assert torch.equal(found, expected)
    torch.testing.assert_close(logits, eager, rtol=1e-4, atol=1e-4)


def test_quantized_cache():
    model = model_of("llama")
    found, logits = tokens(model, transformers.QuantizedCache("fp8", model.config))
    model.set_attn_implementation("eager")
    expected, eager = tokens(model, transformers.QuantizedCache("fp8", model.config))
    assert torch.equal(found, expected)
    torch.testing.assert_close(logits, eager, rtol=1e-4, atol=1e-4)


def translated(model, cache, beams):
    inputs = torch.arange(3, 21).reshape(2, 9)
    mask = torch.ones_like(inputs)
    mask[1, 6:] = 0
    made = model.generate(inputs, attention_mask=mask, past_key_values=cache, max_new_tokens=12,
                          min_new_tokens=12, num_beams=beams, do_sample=False,
                          return_dict_in_generate=True, output_logits=True)
    return made.sequences, torch.stack(made.logits)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_dynamic_caches(name, beams):
    torch.manual_seed(0)
    model = PAIRS[name]().eval()
    model.set_attn_implementation("eager")
    expected, eager = translated(model, None, beams)
    model.set_attn_implementation("regard")
    pair = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
    found, logits = translated(model, pair, beams)
    assert torch.equal(found, expected)
    torch.testing.assert_close(logits, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keywords", KINDS, ids=str)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_regards_caches(name, beams, keywords):
    torch.manual_seed(0)
    model = PAIRS[name]().eval()
    model.set_attn_implementation("regard")
    expected, wanted = translated(model, None, beams)
    keywords = {"dtype": "f32", "max_batch_size": 2 * beams, **keywords}
    pair = transformers.EncoderDecoderCache(*(regard.transformers.Cache(model.config, **keywords)
                                              for _ in range(2)))
    found, logits = translated(model, pair, beams)
    if keywords["dtype"] == "f32":
        assert torch.equal(found, expected)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)
    else:  # the first token, before beams part
        error = (logits[0] - wanted[0]).abs().max() / wanted[0].abs().max()
        assert 0 < error < 1 / 127, float(error)
