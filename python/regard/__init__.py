"""Scaled dot-product attention with several backends, and a selector that explains itself.

    out = regard.attention(q, k, v, is_causal=True)
    print(regard.explain(q, k, v, is_causal=True))

regard.torch, regard.flash_attn, regard.transformers and regard.onnx are imported when they are named;
none of them, and no library that they are for, is imported before.
"""

from ._config import show_config
from ._core import (
    Policy,
    Saved,
    __version__,
    attention,
    attention_backward,
    counters,
    devices,
    explain,
    merge_states,
    trim,
)
from ._errors import NoBackendError
from ._gradients import Gradients
from ._policy import policy
from ._selection import Refusal, Selection

__all__ = [
    "Gradients",
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
    "merge_states",
    "policy",
    "show_config",
    "trim",
]
