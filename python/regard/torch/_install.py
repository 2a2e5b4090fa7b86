"""Running other people's code on regard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.nn import functional

from . import _device
from ._call import are_plain
from ._inputs import Arguments
from ._nested import is_jagged
from ._scopes import current_ranks
from ._sdpa import general, scaled_dot_product_attention

_lock = threading.Lock()
_open: list["install"] = []
_scopes = 0  # of context_parallel, on any thread
_routes: list["_Route"] = []  # the last one: the same again keeps what torch.compile has compiled


def _is_here(query: Any) -> bool:
    if not isinstance(query, torch.Tensor) or query.is_nested and not is_jagged(query):
        return False
    return query.device.type == "cpu" or _device.takes(query)


class _Route:
    """A function for the place of another one, and which one that is."""

    def __init__(self, original: Callable[..., Any]) -> None:
        def routed(query: Any, key: Any, value: Any, attn_mask: Any = None,
                   dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
                   enable_gqa: bool = False) -> Any:
            # In context_parallel PyTorch's function would attend to this rank's keys alone.
            if current_ranks() is None and (not _open or not _is_here(query)):
                return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                enable_gqa=enable_gqa)
            if are_plain(query, key, value, query if attn_mask is None else attn_mask):
                return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p,
                                                    is_causal, scale=scale, enable_gqa=enable_gqa)
            # Classes that know PyTorch's function compare what they are given with the module's.
            return general(Arguments(query, key, value, attn_mask, dropout_p, is_causal, scale,
                                     enable_gqa), routed)

        self.original: Any = original
        self.function: Any = routed


def _put() -> None:
    """Before the first of the handles and scopes."""
    if not _open and not _scopes:
        there = functional.scaled_dot_product_attention
        if not _routes or there not in (_routes[0].original, _routes[0].function):
            _routes[:] = [_Route(there)]
        functional.scaled_dot_product_attention = _routes[0].function


def _add(handle: "install") -> None:
    _put()
    _open.append(handle)


def begin_scope() -> None:
    """Routes calls of threads that have context_parallel open; end_scope() ends it."""
    global _scopes
    with _lock:
        _put()
        _scopes += 1


def end_scope() -> None:
    global _scopes
    with _lock:
        _scopes -= 1
        _restore_after_last()


def _restore_after_last() -> None:
    if not _open and not _scopes and _routes and functional.scaled_dot_product_attention is _routes[0].function:
        functional.scaled_dot_product_attention = _routes[0].original


class install:  # noqa: N801 - used as a function
    """Makes torch.nn.functional.scaled_dot_product_attention regard's: of CPU tensors, and of CUDA
    tensors where regard is built with CUDA.

        >>> import torch, regard.torch
        >>> q = k = v = torch.ones(1, 2, 5, 64)
        >>> with regard.torch.install(), regard.trace() as t:  # in this block
        ...     out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        >>> len(t.records)
        1
        >>> handle = regard.torch.install()  # until regard.torch.uninstall()
        >>> regard.torch.uninstall()

    The function is the module's attribute, so every thread sees it; code that took the function
    itself before (from ... import) does not, and what was taken while it was installed is PyTorch's
    again afterwards. Blocks nest, also in a permanent installation. The last to end puts back what
    was there, unless somebody else has put another function there meanwhile.

    Calls raise what regard.torch.scaled_dot_product_attention raises.

    More: `python -m regard docs pytorch`.
    """

    def __init__(self) -> None:
        self._blocks = 0  # with statements that are open
        with _lock:
            _add(self)

    def __enter__(self) -> None:
        with _lock:
            if self._blocks or self not in _open:
                _add(self)
            self._blocks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with _lock:
            self._blocks -= 1
            _open.remove(self)
            _restore_after_last()


def uninstall() -> None:
    """Ends every install() that is no with statement; blocks that are open stay until their end.
    Nothing happens where nothing is installed.

        >>> import regard.torch
        >>> regard.torch.uninstall()

    More: `python -m regard docs pytorch`.
    """
    with _lock:
        _open[:] = [handle for handle in _open if handle._blocks]
        _restore_after_last()
