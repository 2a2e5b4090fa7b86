"""What regard.attention_backward returns."""

from __future__ import annotations

from typing import Any, NamedTuple


class Gradients(NamedTuple):
    """The gradients, each with the shape, layout and kind of the array that it belongs to."""

    d_q: Any
    d_k: Any
    d_v: Any
    d_bias: Any = None  # None without attn_bias; float32 where the bias was converted to it
    d_sinks: Any = None  # None without sinks; float32
    d_captured: tuple[Any, ...] | None = None  # None without captured; in it, None for those that
    # score_function does not read as real numbers
    amax: Any = None  # with return_amax: the largest magnitudes of d_q, d_k and d_v, float32 [3]


Gradients.__module__ = "regard"  # its public name, in pickles
