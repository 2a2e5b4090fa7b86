"""Padded tensors as packed sequences, and back."""

from __future__ import annotations

import sys
from typing import Any

from . import _core
from ._core import Lengths


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _on_host(x: Any) -> Any:
    return x.detach().cpu() if _is_torch(x) else x


def unpad(x: Any, *, mask: Any = None, seqlens: Any = None, position_ids: Any = None,
          lengths: Lengths | None = None) -> tuple[Any, Lengths]:
    """(packed, lengths): the rows of x [batch, seqlen, ...] one behind another, [total, ...].

    Which positions hold rows is one of: mask [batch, seqlen], bool or integers (nonzero = a row;
    padding may be on either side and within a sequence); seqlens [batch], each at the left;
    position_ids [batch, seqlen], where a sequence begins at each 0; lengths, of an earlier call.
    x is a NumPy array, an object with __dlpack__ on a CPU, or a torch tensor, which keeps its
    gradient and device.

        >>> import numpy as np, regard
        >>> x = np.ones((2, 3, 4, 8), np.float32)
        >>> packed, lengths = regard.unpad(x, mask=[[True, True, False], [True, True, True]])
        >>> packed.shape
        (5, 4, 8)

    Raises TypeError where not exactly one of the four is given, TypeError or ValueError for an
    argument, with its name, its value and what is accepted.

    More: `python -m regard docs python`.
    """
    ways = {"mask": mask, "seqlens": seqlens, "position_ids": position_ids, "lengths": lengths}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        raise TypeError("unpad() takes one of mask, seqlens, position_ids and lengths, and "
                        f"{', '.join(given) or 'none'} was given")
    if lengths is None:
        seqlen = None if seqlens is None else _seqlen_of(x)
        lengths = Lengths(mask=_on_host(mask), seqlens=_on_host(seqlens),
                          position_ids=_on_host(position_ids), seqlen=seqlen)
    if _is_torch(x):
        from .torch._lengths import unpad as unpad_tensor

        return unpad_tensor(x, lengths), lengths
    return _core.unpad(x, lengths), lengths


def pad(packed: Any, lengths: Lengths) -> Any:
    """packed [total, ...] as [batch, seqlen, ...]; positions without a row are exactly 0.

    lengths is what unpad returned, or a regard.Lengths. The result is of packed's kind and type.

        >>> import numpy as np, regard
        >>> lengths = regard.Lengths(seqlens=[2, 3], seqlen=3)
        >>> regard.pad(np.ones((5, 4, 8), np.float32), lengths).shape
        (2, 3, 4, 8)

    Raises TypeError or ValueError where packed has not the rows of the lengths.

    More: `python -m regard docs python`.
    """
    if _is_torch(packed):
        from .torch._lengths import pad as pad_tensor

        return pad_tensor(packed, lengths)
    return _core.pad(packed, lengths)


def _seqlen_of(x: Any) -> int:
    shape: tuple[int, ...] = tuple(getattr(x, "shape", ()))
    if len(shape) < 2:
        raise ValueError(f"shape of x ({shape}) must be [batch, seqlen, ...]")
    return int(shape[1])
