"""python -m regard.llm export: a GGUF file as a program of PyTorch or ONNX."""

from __future__ import annotations

import argparse
import os
import sys

from .._errors import NoBackendError
from ._options import BACKENDS, SUFFIXES


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m regard.llm",
                                     description="Language models of GGUF files, exported.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    export = verbs.add_parser(
        "export", help="write a model as a program of PyTorch or ONNX",
        description="Writes the model of a GGUF file (architecture llama), in float32, as a program: "
                    "input_ids [1, S] to logits [1, S, vocabulary], one causal sequence, no cache.")
    add = export.add_argument
    add("--checkpoint", required=True, metavar="FILE.gguf", help="the model")
    add("--output", required=True, metavar="PATH",
        help="the file to write (.pt2 or .onnx); it appears whole or not at all")
    add("--format", default="torch", metavar="FORMAT", help=f"{' or '.join(SUFFIXES)} (torch)")
    add("--attention-backend", default="math", metavar="NAME",
        help=f"one of {', '.join(BACKENDS)} (math: plain operators, which run without regard)")
    add("--dynamic-shapes", action=argparse.BooleanOptionalAction, default=True,
        help="S is any length up to --max-seq-length (default); without, it is that length")
    add("--max-seq-length", type=int, metavar="N",
        help="the greatest S (default: the context of the file)")
    return parser


def _message(error: BaseException) -> str:
    """An error's sentence, in the words of the command line."""
    text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.strerror else (
        str(error) or type(error).__name__)
    for name in ("attention_backend", "dynamic_shapes", "max_seq_length", "checkpoint", "output",
                 "format"):
        if text.startswith(f"{name} ("):
            return f"--{name.replace('_', '-')}{text[len(name):]}"
    return text


def main(words: list[str] | None = None) -> int:
    """0: written. 1: it could not be written or exported. 2: the options or the file are refused.
    3: the backend cannot run the model."""
    arguments = _parser().parse_args(words)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is a file on this machine
    os.environ.setdefault("TQDM_DISABLE", "1")
    from . import _export

    given = {name: value for name, value in vars(arguments).items() if name != "verb"}
    try:
        done = _export.export(given.pop("checkpoint"), given.pop("output"), **given)
    except KeyboardInterrupt:
        print("python -m regard.llm export: interrupted, nothing was written", file=sys.stderr)
        return 130
    except (ValueError, TypeError, FileNotFoundError, IsADirectoryError, PermissionError,
            ImportError) as error:
        print(f"python -m regard.llm export: {_message(error)}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"python -m regard.llm export: {_message(error)}", file=sys.stderr)
        return 3 if isinstance(error, NoBackendError) else 1
    size = "S" if done.dynamic_shapes else str(done.max_seq_length)
    lengths = f", S from 1 to {done.max_seq_length}" if done.dynamic_shapes else ""
    print(f"{done.output}: input_ids [1, {size}] to logits [1, {size}, vocabulary]{lengths}; attention "
          f"{done.attention_backend}, {done.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
