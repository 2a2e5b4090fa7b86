"""Export of language models in GGUF files to PyTorch programs and ONNX.

    python -m regard.llm export --checkpoint model.gguf --output model.pt2

The program regard-llm runs the same files. Nothing imports PyTorch before export() is called.
"""

from __future__ import annotations

import os

__all__ = ["export"]


def export(checkpoint: str | os.PathLike[str], output: str | os.PathLike[str], *,
           format: str = "torch", attention_backend: str = "math", dynamic_shapes: bool = True,
           max_seq_length: int | None = None) -> None:
    """Writes the model of a GGUF file of the llama architecture, in float32, as a program that maps
    input_ids [1, S] (int64) to logits [1, S, vocabulary]: one causal sequence, without a cache.

    format: "torch" (a .pt2 of torch.export) or "onnx". attention_backend: "math" gives plain
    operators, which run without regard; "regard", "flash_attention" and "efficient_attention" give
    regard's operator, which needs `import regard.torch` before the program is loaded and has no
    ONNX form. S is any length from 1 to max_seq_length (by default the context of the file), or
    with dynamic_shapes=False always max_seq_length.

        >>> import regard.llm
        >>> regard.llm.export("missing.gguf", "model.pt2")
        Traceback (most recent call last):
        FileNotFoundError: checkpoint ('missing.gguf') does not exist

    The file `output` appears whole or not at all. A ValueError names the option, or the key or
    tensor of the file, that has no export; ImportError names the packages that are missing.

    More: `python -m regard docs llm`.
    """
    from . import _export

    _export.export(checkpoint, output, format=format, attention_backend=attention_backend,
                   dynamic_shapes=dynamic_shapes, max_seq_length=max_seq_length)
