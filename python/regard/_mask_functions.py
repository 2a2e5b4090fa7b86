"""Masks that Transformers describes by functions, for regard's attention without a tensor of them.

Transformers makes the mask of a layer's kind from a function of (batch, head, query, key): causal, sliding
windows, chunks, packed sequences, padding and overlays of models. Traced, it is an expression that
regard.attention evaluates for the tiles that it needs. What models get is a MaskFunction, a tensor without
memory; an operation on it makes the mask itself, as sdpa has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from . import score_functions as sf
from ._packed_rows import Sequences
from .score_functions import Expression
from .torch import _call
from .torch._function_cache import Functions, prepared_functions
from .torch._function_call import Call, attend
from .torch._function_math import Extents
from .torch._function_trace import Trace, TracingError, trace_mask
from .torch._options import Options

_MIN_ELEMENTS = 1 << 16  # of a mask: a smaller one is made in less time than a function is traced
_PACKED = "packed_sequence_mask_function."


class _Needed(Exception):
    """A mask cannot be left out: its function was called."""


class _Described(NamedTuple):
    """A mask as Transformers describes it to an implementation."""

    batch: int
    queries: int
    keys: int
    q_offset: int
    kv_offset: int
    function: Callable[..., Any]
    padding: Tensor | None  # bool [batch, kv_offset + keys or more]

    @property
    def is_bottom_right(self) -> bool:
        """Whether the last query stands at the last key."""
        return self.q_offset - self.kv_offset == self.keys - self.queries


class MaskFunction(Tensor):
    """A mask [batch, 1, queries, keys] that a function describes, True where a query may attend.

    regard's attention evaluates the function. Every other operation gets a tensor of bools.
    """

    functions: Functions
    diagonal: str
    is_packed: bool  # it hides the keys of other sequences in the row
    make: Callable[[], Tensor]
    made: Tensor | None

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any,  # type: ignore[override]
                           args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        args, kwargs = pytree.tree_map_only(MaskFunction, MaskFunction.tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    def tensor(self) -> Tensor:
        """The mask itself."""
        if self.made is None:
            self.made = self.make()
        return self.made

    def __repr__(self, **unused: Any) -> str:  # type: ignore[override]
        return f"MaskFunction(shape={tuple(self.shape)}, {self.functions.mask!r})"


_make: Callable[..., MaskFunction] = Tensor._make_wrapper_subclass


def _has_packed(function: Any) -> bool:
    """Whether Transformers has found several sequences in a row, and made this function of them."""
    if getattr(function, "__qualname__", "").startswith(_PACKED):
        return True
    for cell in getattr(function, "__closure__", None) or ():
        parts = cell.cell_contents if isinstance(cell.cell_contents, tuple) else (cell.cell_contents,)
        if any(callable(part) and _has_packed(part) for part in parts):
            return True
    return False


def _expression(trace: Trace, given: _Described) -> Expression:
    """The mask as an expression of indices that count from 0."""
    key = trace.arithmetic.operate("+", sf.kv_idx, sf.constant(given.kv_offset))
    if given.is_bottom_right and given.queries != given.keys:
        # So that the offsets of a cache cancel out: windows are recognised then.
        query = trace.arithmetic.operate("+", sf.q_pos, sf.constant(given.kv_offset))
    else:
        query = trace.arithmetic.operate("+", sf.q_idx, sf.constant(given.q_offset))
    node = trace_mask(trace, given.function, (sf.b, sf.constant(0), query, key))
    if given.padding is None:
        return node
    padding = given.padding
    visible = trace_mask(trace, lambda b, h, q_idx, kv_idx: padding[b, kv_idx], (
        sf.b, sf.constant(0), query, key))
    return sf.apply("&", node, visible) if visible.op != "constant" else node


def _describe(keywords: dict[str, Any]) -> _Described | None:
    """None where the numbers are not known, or the mask is small."""
    names = ("batch_size", "q_length", "kv_length", "q_offset", "kv_offset")
    numbers = []
    for name in names:
        value = keywords.get(name, 0)
        if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
            value = int(value)
        if type(value) is not int:
            return None
        numbers.append(value)
    batch, queries, keys, q_offset, kv_offset = numbers
    if queries <= 1 or batch * queries * keys < _MIN_ELEMENTS or q_offset < 0 or kv_offset < 0:
        return None
    padding, function = keywords.get("attention_mask"), keywords.get("mask_function")
    if function is None or (padding is not None and (padding.dim() != 2 or padding.device.type != "cpu")):
        return None
    if padding is not None:
        missing = keys + kv_offset - padding.shape[-1]
        padding = torch.nn.functional.pad(padding, (0, missing)) if missing > 0 else padding
        if padding[:, kv_offset:kv_offset + keys].all():
            padding = None
    return _Described(*numbers, function, padding)


def _needed(*unused: Any) -> Any:
    raise _Needed


def make_mask(make: Callable[..., Tensor | None], keywords: dict[str, Any]) -> Tensor | None:
    """The mask that Transformers' function `make` makes of `keywords`: none where it makes none, a
    MaskFunction where its function can be traced, or the mask itself."""
    device = torch.device(keywords.get("device", "cpu"))
    given = None
    if device.type == "cpu" and not _call.is_traced():
        given = _describe(keywords)
    if given is None:
        return make(**keywords)
    try:
        return make(**{**keywords, "mask_function": _needed})
    except _Needed:
        pass
    extents = Extents(given.batch, 1, given.queries, given.keys)
    trace = Trace(extents, device, False)
    try:
        with torch.no_grad():
            functions = prepared_functions(None, _expression(trace, given))
    except TracingError:
        return make(**keywords)
    mask = _mask_of((given.batch, 1, given.queries, given.keys), functions, lambda: _made(make, keywords))
    mask.diagonal = "bottom_right" if given.is_bottom_right else "top_left"
    mask.is_packed = _has_packed(given.function)
    return mask


def _mask_of(shape: tuple[int, ...], functions: Functions, make: Callable[[], Tensor]) -> MaskFunction:
    mask = _make(MaskFunction, shape, dtype=torch.bool, device="cpu")
    mask.functions, mask.make, mask.made = functions, make, None
    return mask


def _made(make: Callable[..., Tensor | None], keywords: dict[str, Any]) -> Tensor:
    made = make(**{**keywords, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    assert made is not None
    return made


def _restricted(mask: MaskFunction, sequences: Sequences) -> MaskFunction:
    """The mask within sequences."""
    functions, (ids_q, ids_kv) = mask.functions, sequences[:2]
    count = len(functions.captured)
    same = f"i{count}[b,q_idx]==i{count + 1}[b,kv_idx]"
    text = f"({functions.mask})&{same}" if functions.mask else same
    found = _mask_of(tuple(mask.shape), functions._replace(
        mask=text, captured=[*functions.captured, ids_q, ids_kv],
        differentiable=[*functions.differentiable, False, False]),
        lambda: mask.tensor() & (ids_q[:, None, :, None] == ids_kv[:, None, None, :]))
    found.diagonal, found.is_packed = mask.diagonal, True
    return found


def of_layer(mask: MaskFunction, query: Tensor, key: Tensor, sequences: Sequences | None,
             needs_tensor: bool) -> tuple[MaskFunction | None, Tensor | None]:
    """The mask of a layer as a function, or as a tensor where its attention needs one: its shape is another,
    a graph is traced, or keywords mark sequences that the mask has to agree with."""
    extents = (query.shape[0], query.shape[2], key.shape[2])
    if needs_tensor or mask.made is not None or extents != (mask.shape[0], *mask.shape[2:]) or (
            _call.kind_of(query) is _call.MORE) or (sequences is not None and sequences.named):
        return None, mask.tensor()
    if sequences is None or mask.is_packed:
        return mask, None
    if sequences.ids_kv.shape[1] != extents[2]:
        return None, mask.tensor()
    return _restricted(mask, sequences), None


def call_of(mask: MaskFunction, options: Options) -> Call:
    return Call(options._replace(diagonal=mask.diagonal), mask.functions)


__all__ = ["MaskFunction", "attend", "call_of", "make_mask", "of_layer"]
