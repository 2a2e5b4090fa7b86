"""generate_batch with regard, held to generate and to sdpa on small random models."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from packed_models import layer_of

import regard
import regard._as_flash
import regard.transformers

transformers = pytest.importorskip("transformers")
continuous = pytest.importorskip("transformers.generation.continuous_batching.continuous_api")
from transformers import modeling_flash_attention_utils as flash_utils
from transformers.generation.configuration_utils import ContinuousBatchingConfig

SMALL = dict(vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=64, initializer_range=0.2, pad_token_id=0)
GENERATION = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0,
                                           eos_token_id=-1)
CACHE = dict(num_blocks=16, page_size=16, max_batch_tokens=10)
MODELS = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": dict(head_dim=16),
    "Mistral": dict(sliding_window=4),
    "Gemma2": dict(sliding_window=4, head_dim=16, query_pre_attn_scalar=16),
    "GptOss": dict(sliding_window=4, head_dim=16, num_local_experts=2, num_experts_per_tok=1),
}


@pytest.fixture(autouse=True)
def enabled():
    regard.transformers.enable_continuous_batching()
    yield
    regard.transformers.unregister()
    regard.transformers.register()


def make(name="Llama", implementation="regard", dtype=torch.float32, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **MODELS[name], **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(dtype).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)  # sinks and norms, too
    model.set_attn_implementation(implementation)
    return model


def prompts():
    torch.manual_seed(3)
    return [torch.randint(4, 90, (n,)).tolist() for n in (7, 3, 12, 1)]


def generate(model, count=4):
    ids = [torch.tensor([prompt]) for prompt in prompts()[:count]]
    return [model.generate(each, attention_mask=torch.ones_like(each),
                           generation_config=GENERATION)[0, each.shape[1]:].tolist() for each in ids]


def generate_batch(model, count=4, **options):
    # 10 tokens a step, so that prompts are split and requests join others that are under way
    config = ContinuousBatchingConfig(**CACHE, **options)
    results = model.generate_batch(inputs=prompts()[:count], generation_config=GENERATION,
                                   continuous_batching_config=config)
    errors = [each.error for each in results.values() if each.error]
    assert not errors, errors[0]
    return [each.generated_tokens for each in results.values()]


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_generate(name):
    model = make(name)
    with regard.trace() as trace:
        found = generate_batch(model)
    steps = {}
    for record in trace.records:
        steps[record.layer] = steps.get(record.layer, 0) + 1
    assert len(steps) == 2 and len(set(steps.values())) == 1  # one call a layer and step
    assert model.config._attn_implementation == "regard"
    assert found == generate(model)
    model.set_attn_implementation("eager")
    assert found == generate(model)
    if name not in ("Gemma2", "GptOss"):  # softcap and sinks
        model.set_attn_implementation("sdpa")
        assert found == generate_batch(model)


@pytest.mark.parametrize("name, kernel", [("regard_math", "math"), ("regard_flash", "flash")])
def test_a_name_forces_its_backend(name, kernel):
    model = make(implementation=name)
    before = model.config._attn_implementation
    with regard.trace() as trace:
        found = generate_batch(model)
    assert {record.backend for record in trace.records} == {kernel}
    assert model.config._attn_implementation == before
    assert found == generate(model)


def test_16_bits():
    model = make(dtype=torch.bfloat16)
    with regard.trace() as trace:
        found = generate_batch(model)
    assert all("bf16" in record.case for record in trace.records)
    assert [len(each) for each in found] == [6, 6, 6, 6]


def test_a_manager_puts_the_names_back():
    model = make()
    manager = model.init_continuous_batching(
        generation_config=GENERATION,
        continuous_batching_config=ContinuousBatchingConfig(**CACHE))
    assert model.config._attn_implementation == "regard_as_flash"
    ids = torch.tensor([prompts()[0]])
    expected = make()(ids).logits
    with torch.no_grad():  # a call beside the manager
        torch.testing.assert_close(model(ids).logits, expected)
        mask = torch.ones(2, 7, dtype=torch.long)
        mask[1, :3] = 0
        padded = model(ids.expand(2, -1), attention_mask=mask).logits
    torch.testing.assert_close(padded[0], expected[0])
    torch.testing.assert_close(
        padded[1, 3:], make()(ids.expand(2, -1), attention_mask=mask).logits[1, 3:])
    manager.start()
    manager.stop()
    assert model.config._attn_implementation == "regard"


def test_a_manager_that_is_kept():
    model = make()
    expected = generate(model, 2)
    config = ContinuousBatchingConfig(**CACHE)
    for _ in range(2):
        results = model.generate_batch(inputs=prompts()[:2], generation_config=GENERATION,
                                       continuous_batching_config=config, persistent_manager=True)
        assert [each.generated_tokens for each in results.values()] == expected
        assert model.config._attn_implementation == "regard"
    model.destroy_cached_continuous_batching_manager()


def test_names_of_other_implementations_pass_through():
    for name in ("eager", "sdpa"):
        model = make(implementation=name)
        assert generate_batch(model) == generate(model)
        assert model.config._attn_implementation == name


def test_unregister_undoes_it():
    manager = continuous.ContinuousBatchingManager
    ours = manager.switch_to_cb_friendly_attn, flash_utils._lazy_imports
    regard.transformers.enable_continuous_batching()  # again changes nothing
    assert (manager.switch_to_cb_friendly_attn, flash_utils._lazy_imports) == ours
    functions = transformers.AttentionInterface._global_mapping
    assert "regard_as_flash" in functions
    regard.transformers.unregister()
    assert manager.switch_to_cb_friendly_attn is ours[0].__wrapped__
    assert flash_utils._lazy_imports is ours[1].__wrapped__
    assert not [name for name in functions if "regard" in name]
    assert flash_utils._loaded_implementation is None
    regard.transformers.register()
    with pytest.raises(ValueError, match="regard is not supported for continuous batching"):
        make().init_continuous_batching(generation_config=GENERATION)


def test_another_version_is_refused(monkeypatch):
    regard.transformers.unregister()
    before = dict(transformers.AttentionInterface._global_mapping)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["transformers"], "__version__", "5.2.0")
        for enable in (regard.transformers.enable_continuous_batching,
                       regard.transformers.enable_packed_vision):
            with pytest.raises(RuntimeError, match="support Transformers 5.2.0: .* from 5.23"):
                enable()
    with monkeypatch.context() as patch:
        patch.setattr(continuous.ContinuousBatchingManager, "switch_to_cb_friendly_attn",
                      lambda self, model, how: None)
        with pytest.raises(RuntimeError, match="Transformers 5.*switch_to_cb_friendly_attn takes "
                           "self, model, how, not self, model, auto_switch_to_flash"):
            regard.transformers.enable_continuous_batching()
    with monkeypatch.context() as patch:
        patch.delattr(flash_utils, "_lazy_imports")
        with pytest.raises(RuntimeError, match="has no _lazy_imports"):
            regard.transformers.enable_continuous_batching()
    assert transformers.AttentionInterface._global_mapping == before  # nothing was registered


def test_models_without_packed_sequences_are_refused(monkeypatch):
    model = make()
    monkeypatch.setattr(transformers.LlamaPreTrainedModel, "_supports_flash_attn", False)
    with pytest.raises(ValueError, match="'regard': LlamaForCausalLM does not support packed"):
        model.init_continuous_batching(generation_config=GENERATION)
    assert model.config._attn_implementation == "regard"


class Cache:
    """As a PagedAttentionCache whose keys are those of the call."""

    written = False

    def update(self, key_states, value_states, layer_idx, kwargs):
        kwargs["cu_seq_lens_k"] = kwargs["cu_seq_lens_k"]["full_attention"]
        kwargs["max_length_k"] = kwargs["max_length_k"]["full_attention"]
        self.written = True
        return key_states, value_states


@pytest.mark.parametrize("window", [None, 3])
def test_rows_past_the_last_request(window):
    """A compiled step has more rows than tokens, and requests without rows at the end."""
    attend = transformers.AttentionInterface._global_mapping["regard_as_flash"]
    q, (k, v) = torch.randn(1, 4, 9, 8), torch.randn(2, 1, 2, 14, 8)
    for x in (q[:, :, 6:], k[:, :, 10:], v[:, :, 10:]):
        x.fill_(torch.nan)
    starts_q = torch.tensor([0, 1, 6, 6, 6], dtype=torch.int32)
    starts_k = torch.tensor([0, 5, 10, 10, 10], dtype=torch.int32)
    found = attend(layer_of(), q, k, v, None, cu_seq_lens_q=starts_q, max_length_q=9, is_causal=True,
                   cu_seq_lens_k={"full_attention": starts_k}, sliding_window=window,
                   max_length_k={"full_attention": 14}, cache=Cache(),
                   logits_indices=torch.zeros(4, dtype=torch.int32))[0]
    distances = torch.arange(5)[:, None] - torch.arange(5)
    mask = (distances >= 0) & (distances < (window or 9))
    own = transformers.AttentionInterface._global_mapping["regard"]
    parts = [own(layer_of(), q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], mask[None, None, a - b:])[0]
             for a, b, c, d in ((0, 1, 0, 5), (1, 6, 5, 10))]
    torch.testing.assert_close(found[:, :6], torch.cat(parts, 1))
    assert not found[:, 6:].any()


def test_what_is_not_supported_is_refused_by_name():
    attend = transformers.AttentionInterface._global_mapping["regard_as_flash"]
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    starts = torch.tensor([0, 4, 6], dtype=torch.int32)

    def given(**more):
        return dict(cu_seq_lens_q=starts, cu_seq_lens_k={"full_attention": starts}, cache=Cache(),
                    max_length_q=4, max_length_k={"full_attention": 4}, is_causal=True, **more)

    expected = torch.cat([attend(layer_of(), *(x[:, :, part] for x in (q, k, v)), None)[0]
                          for part in (slice(0, 4), slice(4, 6))], 1)
    torch.testing.assert_close(attend(layer_of(), q, k, v, None, **given())[0], expected)
    for more, word in [(dict(block_table=torch.zeros(2, 3)), "block_table"),
                       (dict(output_attentions=True), "output_attentions"),
                       (dict(position_bias=torch.zeros(1, 2, 6, 6)), "position_bias"),
                       (dict(dropout=0.5), "dropout"),
                       (dict(head_mask=torch.ones(2)), "head_mask")]:
        words = given(**more)
        with pytest.raises(ValueError, match=word):
            attend(layer_of(), q, k, v, None, **words)
        assert not words["cache"].written
    with pytest.raises(ValueError, match="is_causal"):
        attend(layer_of(), q, k, v, None, **{**given(), "is_causal": False})
    with pytest.raises(ValueError, match="attention_mask .* generate_batch"):
        attend(layer_of(), q, k, v, torch.ones(1, 1, 6, 6, dtype=torch.bool), **given())
    with pytest.raises(ValueError, match="attention_mask .* for a batch of 1"):
        attend(layer_of(), q, k, v, torch.ones(2, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match="attention_mask beside cu_seq_lens_k, cu_seq_lens_q"):
        attend(layer_of(), q, k, v, torch.ones(1, 6, dtype=torch.bool), cu_seq_lens_q=starts,
               cu_seq_lens_k=starts)


@pytest.mark.parametrize("words", [dict(), dict(sliding_window=3), dict(softcap=2.0),
                                   dict(s_aux=torch.tensor([0.5, -1.0])), dict(scaling=0.3)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_transformers_own_function_for_flash_attention(words, is_causal):
    """Its pad and unpad around ours, held to the name's own function with the mask in four
    dimensions."""
    own = transformers.AttentionInterface._global_mapping["regard"]
    attend = transformers.AttentionInterface._global_mapping["regard_as_flash"]
    module = layer_of()
    module.is_causal = is_causal
    q, k, v = torch.randn(3, 3, 2, 6, 8)
    padding = torch.ones(3, 6, dtype=torch.bool)
    padding[0, :2] = padding[1, 4:] = False
    mask = padding[:, None, None, :].expand(-1, 1, 6, -1)
    distances = torch.arange(6)[:, None] - torch.arange(6)
    reach = words.get("sliding_window", 9)
    mask = mask & (distances < reach) & (distances >= (0 if is_causal else 1 - reach))
    expected = own(module, q, k, v, mask, **words)[0]
    found = attend(module, q, k, v, padding, **words)[0]
    torch.testing.assert_close(found[padding], expected[padding])
    assert not found[~padding].any()
    if not is_causal:
        positions = torch.tensor([[0, 1, 2, 3, 0, 1]])
        found = attend(module, q[:1], k[:1], v[:1], None, position_ids=positions, **words)[0]
        parts = [own(module, *(x[:1, :, part] for x in (q, k, v)),
                     mask[2:, :, part, part], **words)[0] for part in (slice(0, 4), slice(4, 6))]
        torch.testing.assert_close(found, torch.cat(parts, 1))


def test_masks_of_the_aliases():
    """None where the call itself is causal with a window, and a mask for everything else."""
    from transformers import masking_utils

    config = make(implementation="regard_as_flash").config
    config.sliding_window = 4
    given = dict(config=config, inputs_embeds=torch.zeros(1, 6, 64), attention_mask=None,
                 past_key_values=None)
    restarting = torch.tensor([[0, 1, 2, 0, 1, 2]])
    for positions in (None, restarting):
        for make_mask in (masking_utils.create_causal_mask,
                          masking_utils.create_sliding_window_causal_mask):
            assert make_mask(**given, position_ids=positions) is None
    blocks = torch.tensor([[0, 0, 0, -1, -1, -1]])
    found = masking_utils.create_causal_mask(**given, block_sequence_ids=blocks)
    assert found[0, 0, 0].tolist() == [True, True, True, False, False, False]
    found = masking_utils.create_causal_mask(
        **given, or_mask_function=lambda batch, head, q, kv: kv == 5)
    assert found[0, 0, 0].tolist() == [True, False, False, False, False, True]
    padding = torch.tensor([[0, 1, 1, 1, 1, 1]])
    found = masking_utils.create_causal_mask(**{**given, "attention_mask": padding})
    assert found[0, 0, 2].tolist() == [False, True, True, False, False, False]
