"""Masks of Transformers' models in context_parallel, where positions jump and keys lie elsewhere."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from torch import Tensor

from .._patches import Patches
from ._scopes import ArgumentError, current_ranks

_lock = threading.Lock()
_open = 0
_patches: Patches | None = None


class Masks:
    """While one is open, models that run in a context_parallel scope make no mask of this rank's part alone.

    Transformers takes positions that jump, as those of a zigzag layout do, for sequences packed in a row, and
    hides a sliding window by a mask of this rank's keys. Nothing happens where it is not imported.
    """

    def __init__(self) -> None:
        global _open, _patches
        with _lock:
            if not _open:
                _patches = _patched(sys.modules.get("transformers.masking_utils"))
            _open += 1

    def undo(self) -> None:
        global _open, _patches
        with _lock:
            _open -= 1
            if not _open and _patches is not None:
                _patches.undo()
                _patches = None


def _patched(module: Any) -> Patches | None:
    if module is None:
        return None
    patches = Patches()
    for name, make in (("find_packed_sequence_indices", _without_jumps),
                       ("_ignore_causal_mask_sdpa", _without_window)):
        if name in vars(module):
            patches.set(module, name, make(vars(module)[name]))
    return patches


def _without_jumps(find: Any) -> Any:
    @functools.wraps(find)
    def found(position_ids: Tensor, *args: Any, **keywords: Any) -> Any:
        scope = current_ranks()
        if scope is None:
            return find(position_ids, *args, **keywords)
        if not scope.has_documents and bool((position_ids.diff(dim=-1) <= 0).any()):
            raise ArgumentError("position_ids (which begin again) must ascend in context_parallel without cu_seqlens; "
                                "context_parallel(cu_seqlens=...) says where documents begin")
        return None

    return found


def _without_window(ignores: Any) -> Any:
    @functools.wraps(ignores)
    def ignored(padding_mask: Tensor | None, q_length: int, kv_length: int, q_offset: Any, kv_offset: Any,
                local_attention_size: int | None = None, **keywords: Any) -> Any:
        if current_ranks() is not None and local_attention_size is not None:
            raise ArgumentError(f"sliding_window or chunk ({local_attention_size}) needs attn_implementation='regard' in "
                                "context_parallel: PyTorch's function takes it as a mask of this rank's keys")
        return ignores(padding_mask, q_length, kv_length, q_offset, kv_offset, local_attention_size, **keywords)

    return ignored
