"""What models ask of an implementation's masks and keywords: held to eager, or refused."""

import inspect
import os
import re

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

import regard._packed_rows
import regard.transformers

transformers = pytest.importorskip("transformers")
regard.transformers.register()

SMALL = dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             intermediate_size=64, initializer_range=0.2)
SEQ2SEQ = dict(vocab_size=99, d_model=64, encoder_layers=2, decoder_layers=2,
               encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
               decoder_ffn_dim=64, init_std=0.2)


def tokens():
    """Two rows of 9 tokens; of the second, 5."""
    torch.manual_seed(1)
    ids = torch.randint(4, 90, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return ids, mask


def make(name, implementation, **options):
    torch.manual_seed(0)
    config = getattr(transformers, re.sub("(For[A-Z].*|Model)$", "Config", name))(**options)
    return getattr(transformers, name)._from_config(config, attn_implementation=implementation).eval()


def difference(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("name", ["MPNetModel", "BloomForCausalLM", "RoFormerModel"])
def test_models_off_the_interface_are_refused(name):
    """Transformers gives them sdpa's masks and their own code adds True and False to the scores."""
    with pytest.raises(ValueError, match=f"{name} does not take its attention from.*'eager'"):
        make(name, "regard_flash", **SMALL)


@pytest.mark.parametrize("name", ["FalconForCausalLM", "GPTJForCausalLM", "GitForCausalLM"])
def test_models_with_tables_of_their_own_are_refused(name):
    with pytest.raises(ValueError, match="regard.*eager.*"):
        make(name, "regard", vocab_size=99, hidden_size=64, num_attention_heads=4,
             num_hidden_layers=1)


def test_parts_may_keep_eager():
    """GIT's image part takes its attention from the interface, its text part does not."""
    vision = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
                  image_size=16, patch_size=8)
    model = make("GitForCausalLM", "eager", vision_config=vision, **SMALL)
    ids, mask = tokens()
    image = torch.randn(2, 3, 16, 16)
    found = []
    for implementation in ("eager", "regard", "regard_math"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append(model(ids, attention_mask=mask, pixel_values=image).logits)
    assert difference(found[1], found[0]) < 1e-5
    assert difference(found[2], found[0]) < 1e-5


@pytest.mark.parametrize("name, options", [
    ("NllbMoeForConditionalGeneration", dict(SEQ2SEQ, num_experts=2, encoder_sparse_step=0,
                                             decoder_sparse_step=0)),
    ("PegasusXForConditionalGeneration", dict(SEQ2SEQ, num_global_tokens=4, block_size=8)),
    ("SplinterModel", SMALL)])
def test_models_that_read_added_masks_alone(name, options):
    """Decoders that are not said to be causal, encoders of which nothing is said."""
    ids, mask = tokens()
    inputs = dict(input_ids=ids) if "For" not in name else dict(input_ids=ids, decoder_input_ids=ids)
    eager = make(name, "eager", **options)
    for implementation in ("regard", "regard_flash"):
        model = make(name, implementation, **options)
        assert model.config._attn_implementation.endswith("_added_masks")
        model.load_state_dict(eager.state_dict())
        with torch.no_grad():
            assert difference(model(**inputs)[0], eager(**inputs)[0]) < 1e-5
            padded = [m(attention_mask=mask, **inputs)[0] for m in (model, eager)]
        kept = slice(None) if "For" in name else mask.bool()
        assert difference(padded[0][kept], padded[1][kept]) < 1e-5
        model.set_attn_implementation("eager")
        model.set_attn_implementation(implementation)
        assert model.config._attn_implementation.endswith("_added_masks")


def test_models_that_say_what_is_causal_keep_their_masks():
    assert make("LlamaModel", "regard", **SMALL).config._attn_implementation == "regard"


def test_last_queries_alone():
    """Gemma-4's layers that share keys compute the rows that logits are asked of."""
    options = dict(vocab_size=99, vocab_size_per_layer_input=99, hidden_size=64,
                   hidden_size_per_layer_input=16, intermediate_size=64, num_hidden_layers=4,
                   num_attention_heads=4, num_key_value_heads=2, head_dim=16, global_head_dim=32,
                   sliding_window=32, num_kv_shared_layers=2, initializer_range=0.2,
                   layer_types=["sliding_attention", "full_attention"] * 2)
    if not hasattr(transformers, "Gemma4TextConfig"):
        pytest.skip("this Transformers has no Gemma-4")
    torch.manual_seed(0)
    model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**options)).eval()
    ids, _ = tokens()
    found = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        with torch.no_grad():
            found.append([model(ids, logits_to_keep=2).logits,
                          model(ids, logits_to_keep=1, past_key_values=cache).logits])
    for mine, theirs in zip(found[1], found[0]):
        assert difference(mine, theirs) < 1e-5


def test_keys_chosen_by_an_indexer():
    options = dict(vocab_size=99, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
                   num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                   n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                   kv_lora_rank=16, q_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                   v_head_dim=16, head_dim=8, index_n_heads=2, index_head_dim=16, index_topk=4,
                   first_k_dense_replace=2, initializer_range=0.2)
    if not hasattr(transformers, "DeepseekV32Config"):
        pytest.skip("this Transformers has no DeepSeek-V3.2")
    model = make("DeepseekV32ForCausalLM", "eager", **options)
    ids, mask = tokens()
    mask = mask.flip(1)
    model.generation_config.eos_token_id = None
    found = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            found.append([model(ids).logits, model(ids, attention_mask=mask).logits[mask.bool()],
                          model.generate(ids, attention_mask=mask, max_new_tokens=6,
                                         do_sample=False, pad_token_id=0)])
    for mine, theirs in zip(found[1][:2], found[0][:2]):
        assert difference(mine, theirs) < 1e-5
    assert torch.equal(found[1][2], found[0][2])


def test_keywords_of_every_model():
    """What Transformers' own types let a caller hand through a model is known to each layer."""
    from transformers.loss.loss_utils import ForCausalLMLoss
    from transformers.utils.generic import TransformersKwargs

    taken = {"output_attentions", "is_causal"}
    loss = [p.name for p in inspect.signature(ForCausalLMLoss).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = {*TransformersKwargs.__annotations__, *loss} - taken - {"logits", "vocab_size"}
    assert names >= {"shift_labels", "position_ids"}
    packed = regard._packed_rows.check_keywords(dict.fromkeys(names, 1))
    assert packed.keys() == regard._packed_rows.KEYWORDS & names

    ids, _ = tokens()
    model = make("LlamaForCausalLM", "regard", num_key_value_heads=2, **SMALL)
    loss = model(ids, labels=ids, shift_labels=ids, ignore_index=-100).loss
    model.set_attn_implementation("eager")
    torch.testing.assert_close(loss, model(ids, labels=ids, shift_labels=ids).loss)
    model.set_attn_implementation("regard")
    with pytest.raises(ValueError, match="seq_idx .*do not fit"):
        model(ids, seq_idx=torch.zeros_like(ids)[:, 1:])
