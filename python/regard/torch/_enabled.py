"""Which backends are enabled, beside which of them are of any use on this machine."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core
from ._scopes import current_policy


class Enabled(NamedTuple):
    """True where policies allow the backend; `usable` says whether it runs a plain call here.

        >>> import regard.torch
        >>> bool(regard.torch.Enabled(enabled=True, usable=False, reason="needs a CUDA device"))
        True

    More: `python -m regard docs pytorch`.
    """

    enabled: bool
    usable: bool
    reason: str  # why it is not usable; "" where it is

    def __bool__(self) -> bool:
        return self.enabled

    def __eq__(self, other: object) -> bool:  # flash_sdp_enabled() == True, as of PyTorch's bool
        return self.enabled == other if isinstance(other, bool) else tuple(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))


def _enabled(name: str) -> Enabled:
    selection = _core.explain("b1 hq1 sq8 d64 f32", policy=current_policy())
    (candidate,) = [c for c in selection.candidates if c["backend"] == name]
    built = [r for r in selection.refusals if r.backend == name and r.code != "not_in_only"]
    reasons = ". ".join(r.message for r in built)
    enabled = bool(candidate["enabled"])
    return Enabled(enabled, bool(candidate["usable"]), reasons)


def flash_sdp_enabled() -> Enabled:
    """torch.backends.cuda.flash_sdp_enabled, for regard's FLASH.

    True where policies and sdpa_kernel allow it; an Enabled, whose `usable` says whether it runs a
    plain call here and whose `reason` states why not.

        >>> import regard.torch
        >>> regard.torch.flash_sdp_enabled() == True
        True

    More: `python -m regard docs pytorch`.
    """
    return _enabled("flash")


def mem_efficient_sdp_enabled() -> Enabled:
    """torch.backends.cuda.mem_efficient_sdp_enabled, for regard's EFFICIENT.

    True where policies and sdpa_kernel allow it; an Enabled, whose `usable` says whether it runs a
    plain call here and whose `reason` states why not.

        >>> import regard.torch
        >>> regard.torch.mem_efficient_sdp_enabled() == True
        True

    More: `python -m regard docs pytorch`.
    """
    return _enabled("efficient")


def math_sdp_enabled() -> Enabled:
    """torch.backends.cuda.math_sdp_enabled, for regard's MATH.

    True where policies and sdpa_kernel allow it; an Enabled, whose `usable` says whether it runs a
    plain call here and whose `reason` states why not.

        >>> import regard.torch
        >>> regard.torch.math_sdp_enabled() == True
        True

    More: `python -m regard docs pytorch`.
    """
    return _enabled("math")


def cudnn_sdp_enabled() -> Enabled:
    """torch.backends.cuda.cudnn_sdp_enabled, for regard's CUDNN.

    True where policies and sdpa_kernel allow it; an Enabled, whose `usable` says whether it runs a
    plain call here and whose `reason` states why not.

        >>> import regard.torch
        >>> regard.torch.cudnn_sdp_enabled() == True
        True

    More: `python -m regard docs pytorch`.
    """
    return _enabled("cudnn")
