"""Packed rows of models with windows, chunks, softcap and sinks, held to each sequence by itself."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import threading

import pytest
import torch
from packed_models import (
    FORMS,
    LENGTHS,
    ONES,
    POSITIONS,
    SMALL,
    WORDS,
    layer_of,
    one_by_one,
    tokens,
)

import regard
import regard._packed_rows
import regard.transformers

transformers = pytest.importorskip("transformers")
regard.transformers.register()

SPECIAL = dict(SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2)
HEADS_OF_16 = dict(head_dim=16, query_pre_attn_scalar=16)
LLAMA_4 = dict(head_dim=16, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=64,
               layer_types=["chunked_attention", "full_attention"], no_rope_layers=[1, 0])
MODELS = {  # class, configuration, options
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(HEADS_OF_16, sliding_window=4)),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", dict(
        HEADS_OF_16, sliding_window=4, layer_types=["sliding_attention", "full_attention"])),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(head_dim=16)),
    "GptOss": ("GptOssForCausalLM", "GptOssConfig", dict(
        head_dim=16, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)),
    "Llama4": ("Llama4ForCausalLM", "Llama4TextConfig", LLAMA_4),
}


def make(name):
    model, config, options = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, model)(getattr(transformers, config)(**{**SPECIAL, **options}))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)  # sinks and norms, too
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_packed_rows(name):
    model, ids = make(name), tokens()
    expected = one_by_one(model, ids)
    with torch.no_grad():
        model.set_attn_implementation("regard")
        for form, given in FORMS.items():
            found = model(ids, **given).logits
            assert float((found - expected).abs().max()) < 1e-4, form


@pytest.mark.parametrize("name", ["Gemma2", "GptOss", "Llama4"])
def test_flattened_batches_train_as_single_documents_do(name):
    model = make(name).train()
    torch.manual_seed(2)
    features = [dict(input_ids=torch.randint(4, 90, (n,)).tolist()) for n in (9, 4, 6)]
    batch = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)(features)
    results = []
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        if implementation == "eager":
            for each in features:
                ids = torch.tensor([each["input_ids"]])
                loss = model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
                loss.backward()
        else:
            (model(**batch).loss * (19 - 3)).backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for found, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * max(
            1.0, float(expected.abs().max())))


def test_an_encoder_with_windows_to_both_sides():
    config = transformers.ModernBertConfig(
        vocab_size=99, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, initializer_range=0.2, pad_token_id=0, local_attention=6,
        global_attn_every_n_layers=2, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    torch.manual_seed(0)
    model, ids = transformers.ModernBertModel(config).eval(), tokens()
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = torch.cat([model(each)[0] for each in ids.split(LENGTHS, 1)], 1)
        model.set_attn_implementation("regard")
        for more in ({}, dict(attention_mask=ONES)):
            with regard.trace() as trace:
                found = model(ids, **WORDS, **more)[0]
            assert all("packed" in record.case for record in trace.records)
            assert "window=3,3" in trace.records[1].case
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_llama_4_beside_padding_and_a_cache_of_a_fixed_length():
    model, ids = make("Llama4"), tokens()
    model.set_attn_implementation("regard")
    cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad(), pytest.raises(ValueError, match="position_ids .* cache .* chunks"):
        model(ids, position_ids=POSITIONS, past_key_values=cache)
    padded = ONES.clone()
    padded[0, 0] = 0
    with torch.no_grad(), pytest.raises(ValueError, match="position_ids .* padding .* chunks"):
        model(ids, position_ids=POSITIONS, attention_mask=padded)
    with torch.no_grad():  # one sequence, and padding on the left
        for mask in (ONES, (torch.arange(12)[None] >= 3).long()):
            results = []
            for implementation in ("eager", "regard"):
                model.set_attn_implementation(implementation)
                results.append(model.generate(ids, attention_mask=mask, max_new_tokens=4,
                                              do_sample=False))
            assert torch.equal(*results)


def chunked_layer():
    layer = layer_of()
    layer.config = transformers.Llama4TextConfig(**{**SPECIAL, **LLAMA_4})
    return layer


def test_masks_beside_chunks():
    """Of chunks of the whole row, or of each sequence; others are refused, compiled ones, too."""
    layer = chunked_layer()
    q, k, v = torch.randn(3, 2, 2, 12, 8)
    q, k, v = q[:1], k[:1], v[:1]
    index = torch.arange(12)
    causal = index[:, None] >= index

    def of(places):
        return (causal & (places[:, None] // 4 == places // 4))[None, None]

    attend = regard.transformers._attention
    own = torch.block_diag(*(torch.ones(n, n) for n in LENGTHS)).bool()
    right = of(POSITIONS[0]) & own
    expected = attend("", layer, q, k, v, right)[0]
    other = right.clone()
    other[..., 6, 4] = False
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for call in (attend, compiled):
        for mask in (of(index), right):
            torch.testing.assert_close(call("", layer, q, k, v, mask, **WORDS)[0], expected)
        with pytest.raises(RuntimeError, match="contradicts .* in a layer with chunks of 4"):
            call("", layer, q, k, v, other, **WORDS)
    added = torch.zeros(1, 1, 12, 12).masked_fill(~of(index), float("-inf"))
    torch.testing.assert_close(attend("", layer, q, k, v, added, **WORDS)[0], expected)
    with pytest.raises(ValueError, match="contradicts"):
        attend("", layer, q, k, v, added + 0.5, **WORDS)


def test_inference_mode():
    """Its tensors do not count how often they were written: nothing is remembered of them."""
    model, ids = make("Qwen3"), tokens()
    model.set_attn_implementation("regard")
    with torch.no_grad():
        expected = model(ids, position_ids=POSITIONS).logits, model(ids).logits
    with torch.inference_mode():
        positions = POSITIONS.clone()
        torch.testing.assert_close(model(ids, position_ids=positions).logits, expected[0])
        positions.copy_(torch.arange(12)[None])
        torch.testing.assert_close(model(ids, position_ids=positions).logits, expected[1])


def test_threads_with_other_sequences():
    """What is remembered from layer to layer is that of the same call."""
    model, ids = make("Qwen3"), tokens()
    model.set_attn_implementation("regard")
    forms = [torch.cat([torch.arange(n) for n in lengths])[None]
             for lengths in ((7, 5), (5, 7), (4, 4, 4), (11, 1))]
    with torch.no_grad():
        expected = [model(ids, position_ids=each).logits for each in forms]
    wrong = []

    def run(at):
        for _ in range(10):
            with torch.no_grad():
                found = model(ids, position_ids=forms[at].clone()).logits
            if not torch.equal(found, expected[at]):
                wrong.append(at)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(forms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_remembered_of_tensors_that_are_gone():
    recent = regard._packed_rows._Recent()
    tensor = torch.zeros(3)
    made = recent.get((tensor, None), 1, lambda: torch.ones(2))
    assert recent.get((tensor, None), 1, lambda: None) is made
    assert recent.get((tensor, None), 2, lambda: None) is None
    tensor += 1
    assert recent.get((tensor, None), 1, lambda: 5) == 5
    del tensor
    assert not recent._entries
