"""What the layers of regard.transformers.Cache return for rows that only regard.attention can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ._cached_rows import Rows
from .torch._call import NUMBERS, _layout_of, are_numbers_on_device, kind_of
from .torch._function_call import Call, function_keywords
from .torch._options import TENSORS, Options, native_keywords
from .torch._scopes import ArgumentError, call_policy, current_backends


class RowHandle(Tensor):
    """Keys, or values, of a cache, [batch, kv heads, length, head_dim], without memory of their own.

    regard's attention reads the cache's memory. Every other operation gets a copy of the numbers that
    the rows stand for, as an ordinary tensor, which may not be written to: nothing would come of it.
    """

    rows: Rows
    which: int  # 0: keys, 1: values
    version: int

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any,  # type: ignore[override]
                           args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, given in zip(func._schema.arguments, args):
            if isinstance(given, RowHandle) and argument.alias_info and argument.alias_info.is_write:
                raise ArgumentError(f"{func} writes to rows of a cache (of shape {tuple(given.shape)}); "
                                    "expected a copy of them, rows.clone()")
        args, kwargs = pytree.tree_map_only(RowHandle, RowHandle.numbers, (args, kwargs))
        return func(*args, **kwargs)

    def numbers(self) -> Tensor:
        """The rows as an ordinary tensor."""
        self.check()
        return self.rows.numbers(self.which, self.shape[2])

    def check(self) -> None:
        """Raises where the cache has changed these rows since they were returned."""
        if self.version != self.rows.version:
            raise ArgumentError(f"rows of a cache (of shape {tuple(self.shape)}) must be used before the "
                                "cache is cropped or reordered")

    def __repr__(self, **unused: Any) -> str:  # type: ignore[override]
        return f"RowHandle(shape={tuple(self.shape)}, dtype={self.dtype})"


_make: Callable[..., RowHandle] = Tensor._make_wrapper_subclass


def handles(rows: Rows) -> tuple[RowHandle, RowHandle]:
    """Keys and values, as many as there are now."""
    return _handle(rows, 0), _handle(rows, 1)


def _handle(rows: Rows, which: int) -> RowHandle:
    shape = (rows.batch, rows.heads, rows.length, rows.dims[which])
    made = _make(RowHandle, shape, dtype=rows.dtypes[which], device=rows.device)
    made.rows, made.which, made.version = rows, which, rows.version
    return made


def plain(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Ordinary tensors of the same numbers."""
    return (key.numbers() if isinstance(key, RowHandle) else key,
            value.numbers() if isinstance(value, RowHandle) else value)


def attend(q: Tensor, key: Tensor, value: Tensor, options: Options, backends: str,
           call: Call | None = None) -> Tensor | None:
    """out [B,Hq,Sq,Dv] of a call on keys and values of a cache, whose new rows it writes; None where they
    are others, or the call needs more than numbers of PyTorch's own tensors. `call` has the options, too,
    where it has functions."""
    if type(key) is not RowHandle or type(value) is not RowHandle:
        return None
    if key.rows is not value.rows or (key.which, value.which) != (0, 1) or options.dropout_p:
        return None
    tensors = [q, *[x for x in options[:TENSORS] if x is not None]]
    if not (are_numbers_on_device(*tensors) and call is None) and kind_of(*tensors) is not NUMBERS:
        return None
    key.check()
    keywords = native_keywords(options) if call is None else function_keywords(call)
    backends = backends or current_backends()
    if backends:
        keywords["policy"] = call_policy(backends)
    if _layout_of(q) == "BSHD":
        batch, heads, rows, _ = q.shape
        keywords["out"] = q.new_empty((batch, rows, heads, value.shape[3])).transpose(1, 2)
    return key.rows.attend(q, key.shape[2], keywords)
