"""What a GGUF file must be for Transformers' loader to build its model exactly.

The loader reads some ten keys and skips the others, leaves out tensors that it does not know, and
fills parameters that a file lacks with random numbers. Everything of the kind is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_REQUIRED = ("context_length", "block_count", "embedding_length", "feed_forward_length",
             "attention.head_count", "attention.layer_norm_rms_epsilon")
_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
          "ffn_down")


class Facts(NamedTuple):
    context_length: int
    weight_bytes: int  # as f32, with a tied output counted once


class _File:
    """Keys of a file of the llama architecture; errors name the key."""

    def __init__(self, path: Path, reader: Any) -> None:
        self.path, self.tensors = path, {tensor.name: tensor for tensor in reader.tensors}
        self._fields = reader.fields

    def error(self, message: str) -> ValueError:
        return ValueError(f"checkpoint ({str(self.path)!r}): {message}")

    def value(self, key: str) -> Any:
        return self._fields[key].contents() if key in self._fields else None

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.value(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{key} ({value!r}) must be an integer of at least 1")
        return value


def _open(path: Path) -> _File:
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        file = _File(path, reader)
        architecture = file.value("general.architecture")
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        raise ValueError(f"checkpoint ({str(path)!r}) is no GGUF file that can be read: "
                         f"{type(error).__name__}: {error}") from error
    if architecture != "llama":
        raise file.error(f"general.architecture ({architecture!r}) must be llama")
    return file


def _expected_tensors(blocks: int) -> Iterator[str]:
    yield from ("token_embd.weight", "output_norm.weight")
    for block in range(blocks):
        yield from (f"blk.{block}.{name}.weight" for name in _LAYER)


def _check_keys(file: _File) -> None:
    """Keys that change the model and that the loader skips."""
    kind = file.value("llama.rope.scaling.type")
    if kind not in (None, "none"):
        raise file.error(f"llama.rope.scaling.type ({kind!r}) has no export; expected none")
    for key in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):
        factor = file.value(key)
        if factor not in (None, 0, 1):
            raise file.error(f"{key} ({factor!r}) has no export; expected 1")
    for key in ("llama.expert_count", "llama.attention.sliding_window", "llama.attention.max_alibi_bias",
                "llama.attention.clamp_kqv", "llama.attention.scale", "llama.logit_scale"):
        if file.value(key):
            raise file.error(f"{key} ({file.value(key)!r}) has no export; expected none")
    if file.value("llama.attention.causal") is False:
        raise file.error("llama.attention.causal (False) has no export; expected True")
    if file.value("general.name") == "mistral":
        raise file.error("general.name ('mistral') makes Transformers build another architecture; "
                         "expected another name")


def _check_heads(file: _File) -> None:
    heads = file.whole("llama.attention.head_count")
    heads_kv = file.whole("llama.attention.head_count_kv", heads)
    if heads % heads_kv:
        raise file.error(f"llama.attention.head_count_kv ({heads_kv}) must divide "
                         f"llama.attention.head_count ({heads})")
    embedding = file.whole("llama.embedding_length")
    head_dim = file.whole("llama.rope.dimension_count", max(1, embedding // heads))
    for key in ("llama.attention.key_length", "llama.attention.value_length"):
        if file.whole(key, head_dim) != head_dim:
            raise file.error(f"{key} ({file.value(key)}) must be llama.rope.dimension_count, {head_dim}")
    columns = {"attn_q": heads * head_dim, "attn_k": heads_kv * head_dim, "attn_v": heads_kv * head_dim}
    for name, rows in columns.items():
        shape = [int(extent) for extent in file.tensors[f"blk.0.{name}.weight"].shape]
        if shape != [embedding, rows]:
            raise file.error(f"tensor blk.0.{name}.weight of shape {shape[::-1]} must be "
                             f"{[rows, embedding]}")


def check(path: Path) -> Facts:
    """Facts of a file whose model Transformers builds exactly, or a ValueError that names the key or
    tensor."""
    file = _open(path)
    for key in _REQUIRED:
        if file.value(f"llama.{key}") is None:
            raise file.error(f"llama.{key} is missing")
    _check_keys(file)
    blocks = file.whole("llama.block_count")
    if 9 * blocks > len(file.tensors):
        raise file.error(f"llama.block_count ({blocks}) needs {9 * blocks} tensors of layers, and the "
                         f"file has {len(file.tensors)} in all")
    expected = list(_expected_tensors(blocks))
    for name in expected:
        if name not in file.tensors:
            raise file.error(f"tensor {name} is missing")
    for name in sorted(set(file.tensors) - set(expected) - {"output.weight"}):
        raise file.error(f"tensor {name} has no export; expected those of a llama without biases, "
                         "experts and rope_freqs")
    _check_heads(file)
    elements = sum(math.prod(int(extent) for extent in tensor.shape)
                   for tensor in file.tensors.values())
    return Facts(file.whole("llama.context_length"), 4 * elements)
