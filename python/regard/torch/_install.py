"""Running other people's code on regard."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.nn import functional

from ._sdpa import scaled_dot_product_attention

_installed: list["install"] = []
_original: list[Any] = []


def _routed(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Any:
    if isinstance(query, torch.Tensor) and query.device.type == "cpu" and not query.is_nested:
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                            scale, enable_gqa)
    return _original[0](query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                        enable_gqa=enable_gqa)


class install:  # noqa: N801 - used as a function
    """A context in which torch.nn.functional.scaled_dot_product_attention of CPU tensors is
    regard's.

    The function is the module's attribute, so every thread sees it; code that took the function
    itself before (from ... import) does not. Scopes nest; the last to close puts back what was
    there.
    """

    def __enter__(self) -> None:
        if not _installed:
            _original[:] = [functional.scaled_dot_product_attention]
            functional.scaled_dot_product_attention = _routed
        _installed.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _installed.remove(self)
        if not _installed:
            functional.scaled_dot_product_attention = _original.pop()
