"""Which backend every layer of a model of Transformers takes, and what would make a slow one fast."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from . import _core
from ._as_flash import ADDED_MASKS, SUFFIX
from ._selection import Selection
from ._trace import trace
from .torch._scopes import ArgumentError

FORMULA = "aten_formula"  # the kernel of calls that PyTorch's own operators compute


class LayerSelection(NamedTuple):
    """Layers with the same problem and the same choice."""

    layers: tuple[str, ...]
    case: str
    backend: str
    kernel: str
    selection: Selection
    advice: tuple[str, ...]  # what would make them faster, and why it does not hold now


def _ranges(numbers: Sequence[int]) -> str:
    """{0-3,6} for 0, 1, 2, 3, 6."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return "{" + ",".join("-".join(map(str, part)) for part in parts) + "}"


def _joined(layers: Sequence[str]) -> str:
    """model.layers.{0-31}.self_attn for names that differ in one number."""
    patterns: dict[tuple[str, str], list[int]] = {}
    names = []
    for layer in layers:
        match = re.fullmatch(r"(.*?\.|)(\d+)(\..*|)", layer)
        if match is None:
            names.append(layer)
        else:
            patterns.setdefault((match[1], match[3]), []).append(int(match[2]))
    for (before, after), numbers in patterns.items():
        number = _ranges(numbers) if len(numbers) > 1 else str(numbers[0])
        names.append(before + number + after)
    return ", ".join(names)


class ModelSelection:
    """What regard.transformers.explain found: str() is the table, `layers` the data."""

    def __init__(self, title: str, layers: list[LayerSelection], notes: list[str]) -> None:
        self.title = title
        self.layers = layers
        self.notes = tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        return {"title": self.title, "notes": list(self.notes),
                "layers": [{**group._asdict(), "selection": group.selection.to_dict()}
                           for group in self.layers]}

    def __str__(self) -> str:
        lines = [self.title]
        for group in self.layers:
            count = len(group.layers)
            lines += ["", f"{_joined(group.layers)}" + (f" ({count} layers)" if count > 1 else ""),
                      f"  {group.backend}, {group.kernel}", f"  {group.case}"]
            lines += [f"  - {line}" for line in group.advice]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__


def _implementations(model: Any) -> dict[str, str]:
    """The attention of a model and of each of its parts that has a configuration of its own."""
    found = {}
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        implementation = getattr(config, "_attn_implementation", None)
        if isinstance(implementation, str) and hasattr(module, "set_attn_implementation"):
            found[name or type(model).__name__] = implementation
    return found


def _check_model(model: Any) -> tuple[list[str], list[str]]:
    """The names of regard's attention that are in use, and notes of the parts that have another; an
    error where all have."""
    implementations = _implementations(model)
    if not implementations:
        raise TypeError(f"model ({type(model).__name__}) must be a model of Transformers")
    others = {name: x for name, x in implementations.items() if not x.startswith("regard")}
    if len(others) == len(implementations):
        name, implementation = next(iter(others.items()))
        raise ArgumentError(f"attention of {name} is {implementation!r}, not regard's; call "
                            "regard.transformers.register() and model.set_attn_implementation('regard')")
    names = sorted({x for x in implementations.values() if x.startswith("regard")})
    return names, [f"{name} has {x!r} attention" for name, x in others.items()]


def _check_length(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ArgumentError(f"{name} ({value!r}) must be an integer of at least {least}")
    return value


def _token_inputs(model: Any, batch: int, length: int) -> dict[str, Any]:
    """Random tokens; the seed is not that of the program."""
    if model.main_input_name != "input_ids":
        raise ArgumentError(f"{type(model).__name__} takes {model.main_input_name}, which explain() does "
                            f"not make; give them: inputs={{{model.main_input_name!r}: ...}}")
    config = model.config.get_text_config()
    known = getattr(config, "max_position_embeddings", None) or length
    if length > known:
        raise ArgumentError(f"prompt_length + cache_length ({length}) must be at most the model's "
                            f"max_position_embeddings, {known}")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (batch, length), generator=generator)
    inputs = {"input_ids": ids.to(model.device)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    return inputs


def _run(model: Any, inputs: dict[str, Any], cache_length: int) -> trace:
    """One forward pass under a trace; what is in the cache before it is not traced."""
    if cache_length:
        step = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
        ids = inputs[step]
        filled = model(**{**inputs, step: ids[:, :cache_length]}, use_cache=True)
        cache = getattr(filled, "past_key_values", None)
        if cache is None:
            raise ArgumentError(f"cache_length ({cache_length}) must be 0: {type(model).__name__} "
                                "returns no past_key_values")
        inputs = {**inputs, step: ids[:, cache_length:], "past_key_values": cache}
    with trace(model) as recorded:
        model(**inputs)
    return recorded


def _precision_advice(case: str, device: str) -> list[str]:
    """What the element type costs here."""
    words = set(case.split())
    if device != "cpu":
        return []
    isa = str(json.loads(_core.environment_json())["isa"])
    has_bf16 = isa.endswith("bf16")
    if "f16" in words:
        instead = ("bfloat16 has dot products here" if has_bf16 else
                   "float32 needs no conversion, bfloat16 the same")
        return [f"float16 is converted to float32 and multiplied there on {isa}; {instead}"]
    if "bf16" in words and not has_bf16:
        return [f"bfloat16 is converted to float32 and multiplied there on {isa}, which has no bf16 "
                "dot product"]
    return []


def _backend_advice(call: _core.TracedCall, selection: Selection, names: list[str]) -> list[str]:
    """Why no backend that stands before the chosen one runs; `names`: of attn_implementation."""
    if call.kernel == FORMULA:
        return ["output_attentions has PyTorch's operators compute MATH; without it, "
                f"{_core.explain(call.case or '').chosen} runs"]
    ahead = []
    for candidate in selection.candidates:
        if candidate["chosen"]:
            break
        ahead.append(candidate["backend"])
    refusals = [refusal for refusal in selection.refusals if refusal.backend in ahead]
    advice = [str(refusal) for refusal in refusals]
    names = [name.removesuffix(SUFFIX).removesuffix(ADDED_MASKS) for name in names]
    forced = [name for name in names if name != "regard"]
    if forced and any(refusal.code == "not_in_only" for refusal in refusals):
        advice.append(f"attn_implementation {forced[0]!r} forces {call.backend}; 'regard' leaves the "
                      "choice to the selector")
    return advice


def _group(calls: Sequence[_core.TracedCall], device: str,
           names: list[str]) -> list[LayerSelection]:
    groups: dict[tuple[str, str, str], list[_core.TracedCall]] = {}
    for call in calls:
        key = (call.case or "", call.backend or "", call.kernel or "")
        groups.setdefault(key, []).append(call)
    found = []
    for (case, backend, kernel), members in groups.items():
        selection = members[0].selection or _core.explain(case)
        advice = (*_backend_advice(members[0], selection, names), *_precision_advice(case, device))
        layers = tuple(dict.fromkeys(call.layer or "?" for call in members))
        found.append(LayerSelection(layers, case, backend, kernel, selection, advice))
    return found


def explain(model: Any, batch_size: int = 1, prompt_length: int = 128, cache_length: int = 0, *,
            inputs: dict[str, Any] | None = None) -> ModelSelection:
    """Which backend every layer of a model takes for a prompt, and what would make it faster.

    Runs the model once, without gradients, on batch_size rows of prompt_length random tokens, after
    cache_length tokens in its cache: masks, layouts and types are those of a real call. `inputs`
    are what a model that takes no tokens is called with, in place of these.

        >>> import regard.transformers, transformers
        >>> regard.transformers.register()
        >>> config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, vocab_size=99,
        ...                                   num_hidden_layers=2, num_attention_heads=2)
        >>> model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="regard")
        >>> found = regard.transformers.explain(model, prompt_length=1, cache_length=16)
        >>> [(group.backend, len(group.layers)) for group in found.layers]
        [('flash', 2)]

    Returns a ModelSelection: print it for the table, or read `layers`.

    Raises regard.torch.ArgumentError for a model that has another attention and for lengths out of
    range, TypeError for what is no model.

    More: `python -m regard docs transformers`.
    """
    names, notes = _check_model(model)
    if inputs is None:
        batch = _check_length("batch_size", batch_size, 1)
        prompt = _check_length("prompt_length", prompt_length, 1)
        cached = _check_length("cache_length", cache_length, 0)
        inputs = _token_inputs(model, batch, prompt + cached)
        shape = f"batch_size {batch}, prompt_length {prompt}, cache_length {cached}"
    else:
        cached, shape = 0, ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items()
                                     if isinstance(x, torch.Tensor))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            recorded = _run(model, inputs, cached)
    finally:
        model.train(was_training)
    calls = [call for call in recorded if call.error is None]
    if not calls:
        raise ArgumentError(f"no layer of {type(model).__name__} called regard in a forward pass")
    dtype = str(model.dtype).removeprefix("torch.")
    title = f"{type(model).__name__} in {dtype}: {shape}"
    return ModelSelection(title, _group(calls, model.device.type, names), notes)
