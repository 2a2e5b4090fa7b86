"""What the functions of flash_attn have in common: checks of options, and results in its terms."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..torch._options import Options, seed_of
from ..torch._scopes import ArgumentError


def check_options(window_size: Any, alibi_slopes: Any, softcap: Any, dropout_p: Any = 0.0,
                  **flags: Any) -> None:
    """Raises unless each has its type; `flags` by their names."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} ({flag!r}) must be True or False")
    for name, number in (("dropout_p", dropout_p), ("softcap", softcap)):
        if not isinstance(number, (float, int, torch.SymFloat)):
            raise TypeError(f"{name} ({number!r}) must be a number")
    if not 0.0 <= dropout_p < 1.0:
        raise ArgumentError(f"dropout_p ({dropout_p}) must be at least 0 and below 1")
    if (not isinstance(window_size, (tuple, list)) or len(window_size) != 2
            or not isinstance(window_size[0], int) or not isinstance(window_size[1], int)):
        raise TypeError(f"window_size ({window_size!r}) must be a pair of integers (left, right), "
                        "-1 where it is unlimited")
    if alibi_slopes is not None and not isinstance(alibi_slopes, Tensor):
        raise TypeError(f"alibi_slopes ({type(alibi_slopes).__name__}) must be a torch.Tensor of "
                        "[heads] or [batch, heads], or None")


def options_of(q: Tensor, softmax_scale: float | None, causal: bool, window_size: tuple[int, int],
               softcap: float, alibi_slopes: Tensor | None, dropout_p: float = 0.0) -> Options:
    if softmax_scale is not None and not isinstance(softmax_scale, (float, int, torch.SymFloat)):
        raise TypeError(f"softmax_scale ({softmax_scale!r}) must be a number or None")
    left, right = window_size
    options = Options(softmax_scale=softmax_scale, softcap=softcap, is_causal=causal,
                      diagonal="bottom_right", window_left=max(left, -1),
                      window_right=-1 if causal else max(right, -1), alibi_slopes=alibi_slopes)
    return options._replace(dropout_p=dropout_p, rng=seed_of(q)) if dropout_p else options


def flash_lse(lse: Tensor) -> Tensor:
    """A row without keys has an lse of inf, as in flash_attn 2."""
    return torch.where(lse == -math.inf, math.inf, lse)
