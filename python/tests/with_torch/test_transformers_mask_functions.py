"""Masks that Transformers describes by functions: no tensor of them is made, and results are sdpa's."""

import os
import re
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

import regard._mask_functions
import regard.transformers
from regard._mask_functions import MaskFunction

transformers = pytest.importorskip("transformers")
regard.transformers.register()

COMMON = dict(vocab_size=99, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
              initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DECODER = dict(COMMON, num_key_value_heads=2, head_dim=16)
WINDOWS = dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])
MODELS = {
    "Llama": ("Llama", DECODER),
    "Mistral": ("Mistral", dict(DECODER, sliding_window=8)),
    "Qwen3": ("Qwen3", dict(DECODER, use_sliding_window=True, max_window_layers=1, sliding_window=8)),
    "Gemma2": ("Gemma2", dict(DECODER, attn_logit_softcapping=5.0, **WINDOWS)),
    "Gemma3": ("Gemma3", dict(DECODER, **WINDOWS)),
    "GptOss": ("GptOss", dict(DECODER, num_local_experts=2, num_experts_per_tok=1, **WINDOWS)),
    "Cohere2": ("Cohere2", dict({k: v for k, v in DECODER.items() if k != "head_dim"}, **WINDOWS)),
    "Olmo3": ("Olmo3", dict({k: v for k, v in DECODER.items() if k != "head_dim"}, **WINDOWS)),
    "Llama4": ("Llama4", dict(DECODER, attention_chunk_size=8, intermediate_size_mlp=64, num_local_experts=2)),
    "ModernBert": ("ModernBert", dict(COMMON, local_attention=8, global_attn_every_n_layers=2, cls_token_id=1,
                                      sep_token_id=2)),
    "Bert": ("Bert", COMMON),
}
ENCODERS = ("ModernBert", "Bert")
REFERENCES = {"GptOss": "eager", "Gemma2": "eager"}  # sdpa has neither sinks nor softcap


def make(name):
    family, options = MODELS[name]
    kind = "Model" if name in ENCODERS else "ForCausalLM"
    config = getattr(transformers, f"{family}TextConfig", None) or getattr(transformers, f"{family}Config")
    torch.manual_seed(0)
    model = getattr(transformers, family + kind)._from_config(
        config(**options), attn_implementation=REFERENCES.get(name, "sdpa"))
    model.generation_config = transformers.GenerationConfig(eos_token_id=-1, pad_token_id=0)
    return model.eval()


@pytest.fixture(autouse=True)
def functions_of_small_masks(monkeypatch):
    monkeypatch.setattr(regard._mask_functions, "_MIN_ELEMENTS", 1)


@pytest.fixture
def made(monkeypatch):
    """The masks that were made as tensors."""
    found = []
    original = MaskFunction.tensor

    def tensor(mask):
        found.append(mask)
        return original(mask)

    monkeypatch.setattr(MaskFunction, "tensor", tensor)
    return found


def tokens(rows=2, length=40):
    torch.manual_seed(1)
    return torch.randint(3, 99, (rows, length))


def padded(left):
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, :9] = 0
    mask[0, :2] = 0
    return mask if left else mask.flip(1)


INPUTS = {
    "plain": lambda: dict(input_ids=tokens()),
    "padded_left": lambda: dict(input_ids=tokens(), attention_mask=padded(True)),
    "padded_right": lambda: dict(input_ids=tokens(), attention_mask=padded(False)),
    "packed": lambda: dict(input_ids=tokens(1), use_cache=False, position_ids=torch.cat(
        [torch.arange(13), torch.arange(27)])[None]),
}


def difference(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


def last_hidden(model, inputs):
    result = model(**inputs)
    return result.logits if "logits" in result else result.last_hidden_state


@pytest.mark.parametrize("name, inputs", [(name, inputs) for name in MODELS for inputs in INPUTS
                                          if not (name in ENCODERS and inputs == "packed")])
def test_results_are_those_of_sdpa(name, inputs, made):
    model, given = make(name), INPUTS[inputs]()
    with torch.no_grad():
        if (name, inputs) == ("GptOss", "packed"):  # its own masks do not keep sequences apart
            expected = torch.cat([model(part).logits for part in given["input_ids"].split([13, 27], 1)], 1)
        else:
            expected = last_hidden(model, given)
        model.set_attn_implementation("regard")
        with regard.trace() as trace:
            found = last_hidden(model, given)
    kept = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
    assert difference(found[kept], expected[kept]) < 1e-5
    assert not made
    cases = [record.case for record in trace.records]
    assert not any(re.search(r"mask=\d,", case) for case in cases)
    if inputs.startswith("padded"):
        assert all(re.search(r"mask=\S*i\d\[b,kv_idx\]", case) for case in cases)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ENCODERS])
def test_generated_tokens_are_those_of_sdpa(name, made):
    """Prompts are functions; a single new token has a small mask of its own."""
    model = make(name)
    for given in (dict(inputs=tokens()), dict(inputs=tokens(), attention_mask=padded(True))):
        settings = dict(max_new_tokens=6, do_sample=False, **given)
        expected = model.generate(**settings)
        model.set_attn_implementation("regard")
        assert torch.equal(model.generate(**settings), expected)
        model.set_attn_implementation(REFERENCES.get(name, "sdpa"))
    assert not made


@pytest.mark.parametrize("name", ["Mistral", "Gemma3", "GptOss", "Llama4", "Llama"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_a_prompt_in_two_parts(name, static, made):
    """Offsets of a cache: of queries, and of keys where a layer has dropped those outside its window."""
    model, ids = make(name), tokens()
    found = []
    for implementation in (REFERENCES.get(name, "sdpa"), "regard"):
        model.set_attn_implementation(implementation)
        cache = (transformers.StaticCache(config=model.config, max_cache_len=48) if static
                 else transformers.DynamicCache(config=model.config))
        with torch.no_grad(), regard.trace() as trace:
            model(ids[:, :23], past_key_values=cache)
            found.append(model(ids[:, 23:], past_key_values=cache).logits)
    assert difference(found[1], found[0]) < 1e-5 and not made
    if not static and name != "Llama4":  # the offsets are those of the bottom right corner
        assert all("mask=" not in record.case and "causal" in record.case for record in trace.records)


@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_caches_of_regard(dtype, made):
    """Keys and values that only regard reads, with windows and padding."""
    model, given = make("Mistral"), dict(attention_mask=padded(True))
    expected = model.generate(tokens(), max_new_tokens=4, do_sample=False, **given)
    model.set_attn_implementation("regard")
    cache = regard.transformers.Cache(model.config, dtype=dtype, max_batch_size=2)
    found = model.generate(tokens(), past_key_values=cache, max_new_tokens=4, do_sample=False, **given)
    assert torch.equal(found[:, :41], expected[:, :41]) and not made
    if dtype == "f32":
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["Mistral", "GptOss", "Gemma2"])
def test_gradients(name, made):
    model = make(name).train()
    grads = []
    for implementation in (REFERENCES.get(name, "sdpa"), "regard"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        labels = tokens().masked_fill(padded(False) == 0, -100)  # rows without a key are 0, or eager's mean
        model(tokens(), attention_mask=padded(False), labels=labels).loss.backward()
        grads.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and not made
    for key, grad in grads[0].items():
        torch.testing.assert_close(grads[1][key], grad, rtol=1e-3, atol=1e-4 * grad.abs().max().item() + 1e-7)


def test_checkpointed_layers(made):
    model = make("Mistral").train()
    model.set_attn_implementation("regard")
    grads = []
    for checkpoints in (False, True):
        if checkpoints:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(tokens(), attention_mask=padded(False), labels=tokens()).loss.backward()
        grads.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
    torch.testing.assert_close(grads[1], grads[0])
    assert not made


def test_overlays_of_models(made):
    """Image tokens of Gemma-3 that see each other, and masks that a caller adds."""
    from transformers.masking_utils import create_causal_mask

    model = make("Gemma3")
    groups = torch.full((2, 40), -1)
    groups[:, 5:12], groups[:, 20:30] = 0, 1
    embeds = torch.randn(2, 40, 64)
    found = []
    for implementation in ("sdpa", "regard"):
        model.config._attn_implementation = implementation
        for more in (dict(block_sequence_ids=groups),
                     dict(or_mask_function=lambda b, h, q, k: (groups[b, q] == groups[b, k]) & (groups[b, q] >= 0)),
                     dict(and_mask_function=lambda b, h, q, k: (q - k) % 2 == 0)):
            mask = create_causal_mask(model.config, embeds, None, None, **more)
            q = torch.randn(2, 4, 40, 16, generator=torch.Generator().manual_seed(0))
            k = q[:, :2]
            attend = transformers.AttentionInterface._global_mapping if implementation == "regard" else (
                transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)
            found.append(attend[implementation](model.model.layers[0].self_attn, q, k, k, mask, scaling=0.2)[0])
    for mine, other in zip(found[3:], found[:3]):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    assert not made


def test_what_cannot_be_traced_is_a_tensor():
    """An overlay that reads the numbers: the mask is made as sdpa makes it, and explain says so."""
    from transformers.masking_utils import create_causal_mask

    model = make("Llama")
    model.set_attn_implementation("regard")
    mask = create_causal_mask(model.config, torch.randn(1, 40, 64), None, None,
                              and_mask_function=lambda b, h, q, k: torch.special.i0(q * k * 0.1) < 100)
    assert type(mask) is torch.Tensor and mask.shape == (1, 1, 40, 40)
    with torch.no_grad(), regard.trace() as trace:
        model(tokens(1), attention_mask=mask)
    assert "mask=1,1,Sq,Skv" in trace.records[0].case


def test_operations_on_a_mask_get_a_tensor(made):
    from transformers.masking_utils import create_causal_mask

    model = make("Llama")
    model.config._attn_implementation = "regard"
    given = dict(config=model.config, inputs_embeds=torch.randn(2, 40, 64), attention_mask=padded(True).bool(),
                 past_key_values=None)
    mask = create_causal_mask(**given)
    assert type(mask) is MaskFunction and mask.shape == (2, 1, 40, 40) and mask.dtype == torch.bool
    assert "mask" in repr(mask).lower() and not made
    model.config._attn_implementation = "sdpa"
    expected = create_causal_mask(**given)
    assert torch.equal(mask[:, :, -3:], expected[:, :, -3:]) and made
    assert torch.equal(mask & True, expected) and torch.equal(~mask, ~expected)
    assert torch.equal(torch.where(mask, 0.0, 1.0), torch.where(expected, 0.0, 1.0))


def test_weights_need_a_tensor(made):
    model, ids = make("Mistral"), tokens()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
        model.set_attn_implementation("regard")
        found = model(ids, output_attentions=True).attentions
    for mine, other in zip(found, expected):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    assert made


def test_compiled_models_have_tensors(made):
    model, ids = make("Mistral"), tokens()
    model.set_attn_implementation("regard")
    with torch.no_grad():
        expected = model(ids).logits
        found = torch.compile(model, backend="eager")(ids).logits
    assert difference(found, expected) < 1e-5


def largest_allocation(run):
    """Bytes of the largest memory that PyTorch allocates in the call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = found.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


@pytest.mark.parametrize("name, inputs", [
    ("Gemma3", "plain"), ("Gemma3", "padded"), ("GptOss", "plain"), ("Mistral", "padded"), ("Llama4", "padded"),
    ("Llama4", "plain"), ("Mistral", "packed"), ("Llama", "packed"), ("ModernBert", "padded")])
def test_long_prompts_need_no_mask_of_all_pairs(name, inputs, made):
    """The tensors of a prompt of 4096 tokens have far fewer elements than 4096 * 4096, a byte each."""
    length = 4096
    model = make(name)
    given = dict(input_ids=tokens(1, length))
    if inputs == "padded":
        given["attention_mask"] = torch.ones(1, length, dtype=torch.long)
        given["attention_mask"][0, :100] = 0
    if inputs == "packed":
        given.update(use_cache=False, position_ids=torch.cat([torch.arange(1000), torch.arange(3096)])[None])
    rows = dict(logits_to_keep=1) if name not in ENCODERS else {}

    def run():
        with torch.no_grad():
            model(**given, **rows)

    model.set_attn_implementation("regard")
    with regard.trace() as trace:
        run()
    assert len(trace.records) == 2 and not made
    assert largest_allocation(run) <= length * length // 4
    if (name, inputs) == ("Mistral", "padded"):  # the bound is one that a mask exceeds
        model.set_attn_implementation("sdpa")
        assert largest_allocation(run) >= length * length


LONG = """
import resource, torch, transformers, regard.transformers
regard.transformers.register()
config = transformers.Gemma3TextConfig(
    vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=1,
    num_key_value_heads=1, head_dim=16, sliding_window=512, layer_types=["sliding_attention", "full_attention"],
    pad_token_id=0)
model = transformers.Gemma3ForCausalLM._from_config(config, attn_implementation="regard").eval()
ids = torch.randint(3, 99, (1, 32768))
mask = torch.ones_like(ids)
mask[0, :1000] = 0
with torch.no_grad():
    model(ids[:, :64], attention_mask=mask[:, :64], logits_to_keep=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model(ids, attention_mask=mask, logits_to_keep=1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_of_a_prompt_of_32768_tokens():
    """A mask of all pairs has 1024 MiB."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 256
