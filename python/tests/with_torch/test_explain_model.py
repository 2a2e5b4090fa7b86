"""regard.transformers.explain: the selection of every layer, and what would make one faster."""

import json

import pytest
import torch

import regard
import regard.transformers
from test_transformers import decoder, transformers

LAYERS = ("model.layers.0.self_attn", "model.layers.1.self_attn")


def model_on(implementation, name="Llama", dtype=torch.float32):
    model = decoder(name, dtype)
    model.set_attn_implementation(implementation)
    return model


def machine_has_bf16():
    return regard.show_config("dicts")["machine"]["isa"].endswith("bf16")


def test_equal_layers_are_one_group():
    model = model_on("regard")
    found = regard.transformers.explain(model, batch_size=2, prompt_length=20)
    (group,) = found.layers
    assert group.layers == LAYERS and group.backend == group.selection.chosen == "flash"
    assert group.case.startswith("b2 hq4 hkv2 sq20 skv20 d16 f32 causal")
    assert group.kernel == group.selection.plan["kernel"] and group.advice == ()
    text = str(found)
    assert text == repr(found)
    assert "LlamaForCausalLM in float32: batch_size 2, prompt_length 20, cache_length 0" in text
    assert "model.layers.{0-1}.self_attn (2 layers)" in text
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["backend"] == "flash"


def test_the_model_is_left_as_it_was():
    model = model_on("regard").train()
    state = torch.random.get_rng_state()
    regard.transformers.explain(model, prompt_length=4)
    assert model.training and torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())


def test_a_step_with_a_cache():
    found = regard.transformers.explain(model_on("regard"), prompt_length=1, cache_length=40)
    (group,) = found.layers
    assert " sq1 skv41 " in group.case and group.layers == LAYERS


def test_layers_that_differ_are_groups_of_their_own():
    found = regard.transformers.explain(model_on("regard", "Gemma2"), prompt_length=16)
    assert [group.layers for group in found.layers] == [(layer,) for layer in LAYERS]
    assert "mask" in found.layers[0].case and "mask" not in found.layers[1].case


def test_a_forced_backend_is_named_with_the_change_that_frees_it():
    (group,) = regard.transformers.explain(model_on("regard_math")).layers
    assert group.backend == "math"
    assert any(line.startswith("flash") for line in group.advice)
    assert any("attn_implementation" in line for line in group.advice)


def test_a_type_that_is_converted_is_named():
    (group,) = regard.transformers.explain(model_on("regard", dtype=torch.float16)).layers
    assert any("float16" in line and "float32" in line for line in group.advice)
    (group,) = regard.transformers.explain(model_on("regard", dtype=torch.bfloat16)).layers
    assert bool(group.advice) == (not machine_has_bf16())


def test_output_attentions_is_named():
    inputs = {"input_ids": torch.arange(12)[None], "output_attentions": True}
    (group,) = regard.transformers.explain(model_on("regard"), inputs=inputs).layers
    assert group.backend == "math" and group.kernel == "aten_formula"
    assert any("output_attentions" in line and "flash" in line for line in group.advice)


def test_an_encoder_and_a_decoder():
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2,
                                   num_heads=4, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.set_attn_implementation("regard")
    found = regard.transformers.explain(model, prompt_length=12)
    layers = [layer for group in found.layers for layer in group.layers]
    assert sum(layer.startswith("encoder.") for layer in layers) == 2
    assert sum(layer.startswith("decoder.") for layer in layers) == 4
    found = regard.transformers.explain(model, prompt_length=1, cache_length=12)
    assert any(" sq1 skv13 " in group.case for group in found.layers)


def test_a_model_of_images_takes_inputs():
    torch.manual_seed(0)
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                    intermediate_size=64, image_size=32, patch_size=8)
    model = transformers.ViTModel(config).eval()
    model.set_attn_implementation("regard")
    with pytest.raises(ValueError, match="takes pixel_values.*inputs="):
        regard.transformers.explain(model)
    found = regard.transformers.explain(model, inputs={"pixel_values": torch.randn(1, 3, 32, 32)})
    assert " sq17 skv17 " in found.layers[0].case and "pixel_values (1, 3, 32, 32)" in found.title


@pytest.mark.parametrize(("keywords", "words"), [
    (dict(batch_size=0), "batch_size (0) must be an integer of at least 1"),
    (dict(prompt_length=1.5), "prompt_length (1.5) must be an integer of at least 1"),
    (dict(cache_length=-1), "cache_length (-1) must be an integer of at least 0"),
    (dict(prompt_length=100, cache_length=29), "(129) must be at most the model's "
                                               "max_position_embeddings, 128")])
def test_errors(keywords, words):
    with pytest.raises(ValueError) as caught:
        regard.transformers.explain(model_on("regard"), **keywords)
    assert words in str(caught.value)


def test_a_model_on_another_attention_is_refused():
    with pytest.raises(ValueError, match="attention of LlamaForCausalLM is 'sdpa', not regard's.*"
                                         "set_attn_implementation"):
        regard.transformers.explain(model_on("sdpa"))
    with pytest.raises(TypeError, match="model .Linear. must be a model of Transformers"):
        regard.transformers.explain(torch.nn.Linear(1, 1))


def test_a_model_without_a_cache():
    config = transformers.BertConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1,
                                     num_attention_heads=4, intermediate_size=64)
    model = transformers.BertModel(config).eval()
    model.set_attn_implementation("regard")
    assert regard.transformers.explain(model).layers[0].layers == ("encoder.layer.0.attention.self",)
    with pytest.raises(ValueError, match="cache_length .5. must be 0.*past_key_values"):
        regard.transformers.explain(model, cache_length=5)
