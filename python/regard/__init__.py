"""Scaled dot-product attention with several backends, and a selector that explains itself.

    out = regard.attention(q, k, v, is_causal=True)
    print(regard.explain(q, k, v, is_causal=True))
"""

from ._config import show_config
from ._core import Policy, __version__, attention, counters, devices, explain, merge_states, trim
from ._errors import NoBackendError
from ._policy import policy
from ._selection import Refusal, Selection

__all__ = [
    "NoBackendError",
    "Policy",
    "Refusal",
    "Selection",
    "__version__",
    "attention",
    "counters",
    "devices",
    "explain",
    "merge_states",
    "policy",
    "show_config",
    "trim",
]
