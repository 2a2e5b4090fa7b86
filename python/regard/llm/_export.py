"""Builds the model of a GGUF file through Transformers, and exports it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import _checkpoint, _options
from ._options import FORCED, Options

_NAME = "regard_export"  # of the attention function, while a model is exported
_NEEDED = {"torch": ("torch", "transformers", "gguf", "accelerate"), "onnx": ("onnx", "onnxscript")}
# An ONNX file is one protocol buffer of at most 2 GiB; 16 MiB are left for the graph.
_ONNX_BYTES = (1 << 31) - (1 << 24)
_OPSET = 20
_EXAMPLE_LENGTH = 8


def _require_packages(format: str) -> None:
    names = _NEEDED["torch"] + (_NEEDED["onnx"] if format == "onnx" else ())
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"format ({format!r}) needs {', '.join(names)}; missing: pip install "
                          f"{' '.join(missing)}")


def _attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any,
               scaling: float | None = None, **unused: Any) -> tuple[Any, None]:
    """Causal attention of one sequence, as Transformers calls it; without a mask, since no mask
    function has this name."""
    from .. import torch as regard_torch

    if attention_mask is not None:
        raise RuntimeError("an export has no mask, and Transformers passed one")
    out = regard_torch.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling,
                                                    enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


@contextlib.contextmanager
def _registered() -> Iterator[None]:
    from transformers import AttentionInterface

    from .._patches import Patches

    patches = Patches()
    patches.put(AttentionInterface._global_mapping, _NAME, _attention)
    try:
        yield
    finally:
        patches.undo()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, notes about packages that no export uses, and warnings about the
    internals of PyTorch."""
    import transformers

    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level, progress = log.level, transformers.utils.logging.is_progress_bar_enabled()
    log.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        log.setLevel(level)
        if progress:
            transformers.utils.logging.enable_progress_bar()


def load(checkpoint: Path, attention: str) -> Any:
    """The file's model in f32, for inference, with a name of Transformers' attention functions."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(
        os.fspath(checkpoint.parent), gguf_file=checkpoint.name, dtype=torch.float32,
        attn_implementation=attention, local_files_only=True)
    return model.eval().requires_grad_(False)


def _attention_scope(backend: str) -> Any:
    """What the model is traced in: plain operators, or regard's operator with a backend or without."""
    from .. import torch as regard_torch

    if backend == "math":
        return regard_torch.exportable()
    forced = FORCED[backend]
    return regard_torch.sdpa_kernel(forced) if forced else contextlib.nullcontext()


def _check_operators(program: Any, backend: str) -> None:
    """Nothing is mutated, and without regard's operator every operator is PyTorch's own."""
    allowed = {"aten"} if backend == "math" else {"aten", "regard"}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        if schema.is_mutable or node.target.namespace not in allowed:
            raise RuntimeError(f"the exported graph has the operator {node.target}; expected operators "
                               f"of {' and '.join(sorted(allowed))} that mutate nothing")


def _trace(model: Any, backend: str, length: int, dynamic: bool) -> Any:
    """The ExportedProgram of input_ids -> logits."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    module = Logits()
    example = torch.zeros(1, min(_EXAMPLE_LENGTH, length) if dynamic else length, dtype=torch.int64)
    shapes = ({1: torch.export.Dim("seq_length", min=1, max=length)},) if dynamic else None
    with torch.no_grad(), _attention_scope(backend):
        if backend != "math":
            module(example[:, :_EXAMPLE_LENGTH])  # raises now where the backend cannot run the model
        program = torch.export.export(module, (example,), dynamic_shapes=shapes, strict=False)
    _check_operators(program, backend)
    return program


def _save_torch(program: Any, path: Path) -> None:
    import torch

    buffer = io.BytesIO()  # writing to a path, PyTorch ends the process where the disk is full
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getbuffer())


def _save_onnx(program: Any, path: Path, dynamic: bool) -> None:
    import torch

    converted = torch.onnx.export(
        program, (), dynamo=True, verbose=False, opset_version=_OPSET, input_names=["input_ids"],
        output_names=["logits"], dynamic_shapes=({1: "seq_length"},) if dynamic else None)
    if converted is None:
        raise RuntimeError("torch.onnx.export returned no model")
    converted.save(path, external_data=False)


def _write_whole(output: Path, write: Callable[[Path], None]) -> None:
    """Writes a file in a folder beside `output`, which takes its place once it is on the disk."""
    with tempfile.TemporaryDirectory(prefix=f".{output.stem}.", dir=output.parent) as folder:
        part = Path(folder) / output.name
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(output)


def export(checkpoint: str | os.PathLike[str], output: str | os.PathLike[str], *, format: str,
           attention_backend: str, dynamic_shapes: bool, max_seq_length: int | None) -> Options:
    """Does what regard.llm.export says; the options with the length that programs take at most."""
    options = _options.checked(Options(Path(checkpoint), Path(output), format, attention_backend,
                                       dynamic_shapes, max_seq_length))
    _require_packages(format)
    facts = _checkpoint.check(options.checkpoint)
    length = _options.checked_length(options, facts.context_length)
    if format == "onnx" and facts.weight_bytes > _ONNX_BYTES:
        raise ValueError(f"format ('onnx'): the weights take {facts.weight_bytes} bytes in float32, and "
                         f"an ONNX file holds {_ONNX_BYTES}; expected format torch")
    with _quiet(), _registered():
        model = load(options.checkpoint, _NAME)
        program = _trace(model, attention_backend, length, dynamic_shapes)
        if format == "torch":
            _write_whole(options.output, lambda path: _save_torch(program, path))
        else:
            _write_whole(options.output, lambda path: _save_onnx(program, path, dynamic_shapes))
    return options._replace(max_seq_length=length)
