"""Scaled dot-product attention with several backends, and a selector that explains itself.

    out = regard.attention(q, k, v, is_causal=True)
    print(regard.explain(q, k, v, is_causal=True))

regard.torch, regard.flash_attn, regard.transformers and regard.onnx are imported when they are
named; none of them, and no library that they are for, is imported before.
"""

import importlib
from typing import Any

from ._config import show_config
from ._core import (
    Lengths,
    Policy,
    Saved,
    __version__,
    attention,
    attention_backward,
    counters,
    devices,
    explain,
    machine_rates,
    merge_states,
    trim,
)
from ._errors import NoBackendError
from ._gradients import Gradients
from ._lengths import pad, unpad
from ._policy import policy
from ._selection import Refusal, Selection

__all__ = [
    "Gradients",
    "Lengths",
    "NoBackendError",
    "Policy",
    "Refusal",
    "Saved",
    "Selection",
    "__version__",
    "attention",
    "attention_backward",
    "counters",
    "devices",
    "explain",
    "install",
    "machine_rates",
    "merge_states",
    "pad",
    "policy",
    "show_config",
    "trim",
    "unpad",
]

_SUBMODULES = ("flash_attn", "onnx", "torch", "transformers")


def install() -> Any:
    """A context in which torch.nn.functional.scaled_dot_product_attention runs on regard."""
    from .torch import install

    return install()


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
