"""The options of an export, checked before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
# The backend of regard that a name forces; "" lets regard select one when the program runs.
FORCED = {"regard": "", "flash_attention": "flash", "efficient_attention": "efficient"}
BACKENDS = ("math", *FORCED)
# Names that regard-llm and torchchat have besides, and why they have no export.
_REFUSED = {
    "auto": "selects when a model runs, and a graph is one form of it; expected math for plain "
            "operators, or regard, whose operator selects when it runs",
    "cudnn_attention": f"runs on CUDA devices, and exports run on CPUs; expected one of "
                       f"{', '.join(BACKENDS)}",
}


class Options(NamedTuple):
    checkpoint: Path
    output: Path
    format: str
    attention_backend: str
    dynamic_shapes: bool
    max_seq_length: int | None


def _check_backend(backend: str, format: str) -> None:
    if backend in _REFUSED:
        raise ValueError(f"attention_backend ({backend!r}) {_REFUSED[backend]}")
    if backend not in BACKENDS:
        raise ValueError(f"attention_backend ({backend!r}) must be one of {', '.join(BACKENDS)}")
    if format == "onnx" and backend != "math":
        raise ValueError(f"attention_backend ({backend!r}) is the operator regard::attention, which "
                         "ONNX Runtime does not have; expected math with format onnx, or format torch")


def _check_output(output: Path, format: str) -> None:
    if output.suffix != SUFFIXES[format]:
        raise ValueError(f"output ({str(output)!r}) must end in {SUFFIXES[format]} for format {format}")
    if output.is_dir():
        raise IsADirectoryError(f"output ({str(output)!r}) is a folder; expected a file")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"output ({str(output)!r}): the folder {str(output.parent)!r} does not "
                                "exist")
    if not os.access(output.parent, os.W_OK):
        raise PermissionError(f"output ({str(output)!r}): the folder {str(output.parent)!r} is not "
                              "writable")


def checked(options: Options) -> Options:
    """The options themselves, or an error that names the one that cannot be."""
    if options.format not in SUFFIXES:
        raise ValueError(f"format ({options.format!r}) must be one of {', '.join(SUFFIXES)}")
    _check_backend(options.attention_backend, options.format)
    if not isinstance(options.dynamic_shapes, bool):
        raise TypeError(f"dynamic_shapes ({options.dynamic_shapes!r}) must be True or False")
    length = options.max_seq_length
    if length is not None and (isinstance(length, bool) or not isinstance(length, int)):
        raise TypeError(f"max_seq_length ({length!r}) must be an integer or None")
    if not options.checkpoint.exists():
        raise FileNotFoundError(f"checkpoint ({str(options.checkpoint)!r}) does not exist")
    if not options.checkpoint.is_file():
        raise IsADirectoryError(f"checkpoint ({str(options.checkpoint)!r}) must be a GGUF file")
    _check_output(options.output, options.format)
    if options.output.exists() and options.output.samefile(options.checkpoint):
        raise ValueError(f"output ({str(options.output)!r}) must not be the checkpoint")
    return options


def checked_length(options: Options, context_length: int) -> int:
    """How many positions a program takes at most."""
    length = context_length if options.max_seq_length is None else options.max_seq_length
    # PyTorch traces lengths as if they were at least 2: with one value left it checks none.
    least = 3 if options.dynamic_shapes else 1
    if not least <= length <= context_length:
        raise ValueError(f"max_seq_length ({length}) must be from {least} to {context_length}, the "
                         f"llama.context_length of the checkpoint, with dynamic_shapes="
                         f"{options.dynamic_shapes}")
    return length
