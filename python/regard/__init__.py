"""Scaled dot-product attention with several backends, and a selector that explains itself.

    out = regard.attention(q, k, v, is_causal=True)
    print(regard.explain(q, k, v, is_causal=True))

regard.torch, regard.flash_attn, regard.transformers and regard.onnx are imported when they are
named; none of them, and no library that they are for, is imported before.
"""

import importlib
from typing import Any

from ._benchmark import Benchmark, BenchmarkRow, benchmark
from ._cache import CacheFullError, KVCache, PagedKVCache
from ._config import show_config
from ._core import (
    BlockMask,
    Lengths,
    Policy,
    Saved,
    TracedCall,
    __version__,
    attention,
    attention_backward,
    counters,
    create_block_mask,
    devices,
    diff,
    explain,
    freeze,
    get_num_threads,
    last_selection,
    machine_rates,
    merge_states,
    record,
    replay,
    self_check_violations,
    set_num_threads,
    trim,
)
from ._errors import NoBackendError
from ._gradients import Gradients
from ._lengths import pad, unpad
from ._policy import use_policy
from ._selection import Refusal, Selection
from ._trace import trace

__all__ = [
    "Benchmark",
    "BenchmarkRow",
    "BlockMask",
    "CacheFullError",
    "Gradients",
    "KVCache",
    "Lengths",
    "NoBackendError",
    "PagedKVCache",
    "Policy",
    "Refusal",
    "Saved",
    "Selection",
    "TracedCall",
    "__version__",
    "attention",
    "attention_backward",
    "benchmark",
    "counters",
    "create_block_mask",
    "devices",
    "diff",
    "explain",
    "freeze",
    "get_num_threads",
    "last_selection",
    "machine_rates",
    "merge_states",
    "pad",
    "record",
    "replay",
    "self_check_violations",
    "set_num_threads",
    "show_config",
    "trace",
    "trim",
    "unpad",
    "use_policy",
]

_SUBMODULES = ("flash_attn", "fp8", "onnx", "torch", "transformers")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES})
