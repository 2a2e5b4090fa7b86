"""fp8_autocast in context_parallel: all ranks round a tensor with one scale, and send keys of 8 bits."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor

from .. import _core, fp8
from ._fp8 import NAMES, Rounded, amax_of, fp8_autocast, scale_keywords
from ._group import Communicator
from ._options import Options
from ._rank_call import Call, Shape
from ._scopes import ArgumentError


def check_scope(scope: fp8_autocast, q: Tensor) -> None:
    """Refuses what ranks do not round alike."""
    if not isinstance(scope.recipe, (fp8.DelayedScaling, fp8.Float8CurrentScaling)):
        raise ArgumentError(f"recipe ({scope.recipe!r}) must have one scale for a tensor in context_parallel: "
                            "DelayedScaling or Float8CurrentScaling")
    if scope.quantize_probs:
        raise ArgumentError("quantize_probs (True) must be False in context_parallel: ranks round probabilities of "
                            "parts by other maxima than one rank")
    if q.dtype not in NAMES:
        raise ArgumentError(f"query ({q.dtype}) must be torch.float32, torch.bfloat16 or torch.float16 in fp8_autocast "
                            "and context_parallel")


class Rounding:
    """What one call of all ranks rounds with."""

    def __init__(self, scope: fp8_autocast, link: Communicator, timeout: float) -> None:
        self._recipe, self._states = scope.recipe, scope.next_states()
        self._link, self._timeout = link, timeout

    def rounded(self, tensors: dict[str, Tensor], policy: Any) -> dict[str, Rounded]:
        """The tensors in 8 bits, with the scale of the largest magnitude on any rank."""
        own = [struct.unpack("<q", struct.pack("<d", amax_of(x).item()))[0] for x in tensors.values()]
        scales = [float(self._states.tensors[name].scale) for name in tensors]
        words = f"{self._recipe!r} scales of {', '.join(tensors)} {scales}"
        answers = _core.agree_ranks(self._link, words, tuple(own + [0] * (4 - len(own))), timeout=self._timeout,
                                    policy=policy)
        # The bits of numbers of one sign are ordered as they are; NaN is the largest.
        largest = [struct.unpack("<d", struct.pack("<q", max(each[n] for each in answers)))[0] for n in range(len(own))]
        return {name: Rounded(x.detach(), self._states, name, None, torch.tensor(amax))
                for (name, x), amax in zip(tensors.items(), largest)}

    def keywords(self, rounded: dict[str, Rounded], dtype: torch.dtype) -> dict[str, Any]:
        """Those of regard.attention, of a call whose tensors have `dtype`."""
        return {**scale_keywords(rounded), "fp8_recipe": self._recipe.kind,
                "d_out_dtype": self._states.tensors["d_out"].form.name, "gradient_dtype": NAMES[dtype]}


class RoundedCall(Call):
    """A call of all ranks with q, k and v of 8 bits; results and gradients have the type of the caller's tensors."""

    def __init__(self, link: Communicator, plan: _core.RankPlan, shape: Shape, options: Options, rounding: Rounding,
                 rounded: dict[str, Rounded], out: Tensor) -> None:
        super().__init__(link, plan, shape, options, rounding.keywords(rounded, out.dtype))
        self._rounding = rounding
        self._out: Tensor | None = out
        self._codes = rounded["q"].tensor, rounded["k"].tensor, rounded["v"].tensor

    def tensors(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._codes

    def forward(self, q: Tensor, k: Tensor, v: Tensor, policy: Any, **more: Any) -> tuple[Tensor, Tensor]:
        # Kept by the caller's graph, which keeps this: here it would be a cycle.
        out, self._out = self._out, None
        return super().forward(q, k, v, policy, out=out)

    def backward(self, d_out: Tensor, saved: tuple[Tensor, ...], policy: Any, **more: Any) -> tuple[Tensor | None, ...]:
        rounded = self._rounding.rounded({"d_out": d_out}, policy)
        return super().backward(rounded["d_out"].tensor, saved, policy, **scale_keywords(rounded))
