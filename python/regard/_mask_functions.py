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
from ._packed_rows import Sequences, Shape
from .score_functions import Expression
from .torch import _call
from .torch._function_cache import Functions, prepared_functions
from .torch._function_call import Call, attend
from .torch._function_math import Extents
from .torch._function_trace import Trace, TracingError, trace_mask
from .torch._options import Options
from .torch._scopes import ArgumentError

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
    diagonal_name: str  # Tensor.diagonal is a method
    is_packed: bool  # it hides the keys of other sequences in the row
    packed_window: int | None  # 0 or a sliding window of causal sequences where it hides nothing more
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


def _cells(function: Any) -> dict[str, Any]:
    """What a function's closure holds."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return {name: cell.cell_contents for name, cell in zip(names, getattr(function, "__closure__", None) or ())}


def _is(function: Any, maker: str) -> bool:
    """Whether Transformers' function of that name made it."""
    return getattr(function, "__qualname__", "").startswith(maker)


def _parts(function: Any) -> tuple[Any, ...]:
    """The functions that a function combines."""
    return tuple(part for cell in _cells(function).values()
                 for part in (cell if isinstance(cell, tuple) else (cell,)) if callable(part))


def _has_packed(function: Any) -> bool:
    """Whether Transformers has found several sequences in a row, and made this function of them."""
    return _is(function, "packed_sequence_mask_function.") or any(map(_has_packed, _parts(function)))


def _packed_window(given: _Described) -> int | None:
    """The sliding window of packed sequences that are causal, and nothing more; 0 for none. None for other
    masks."""
    parts = _parts(given.function) if _is(given.function, "and_masks.") else ()
    if given.padding is not None or len(parts) != 2 or not (
            _is(parts[0], "packed_sequence_mask_function.")
            and _is(parts[1], "remap_positions_for_packed_sequence.")):
        return None
    inner = _cells(parts[1]).get("mask_function")
    if _is(inner, "causal_mask_function"):
        return 0
    of_window = _parts(inner) if _is(inner, "and_masks.") else ()
    if len(of_window) == 2 and _is(of_window[0], "sliding_window_overlay.") and (
            _is(of_window[1], "causal_mask_function")):
        window = _cells(of_window[0]).get("sliding_window")
        return window if isinstance(window, int) else None
    return None


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
    return _Described(batch, queries, keys, q_offset, kv_offset, function, padding)


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
    mask.diagonal_name = "bottom_right" if given.is_bottom_right else "top_left"
    mask.is_packed, mask.packed_window = _has_packed(given.function), _packed_window(given)
    return mask


def check_on_ranks(keywords: dict[str, Any]) -> None:
    """Raises unless is_causal and sliding_window say all of the mask of a layer in context_parallel: the columns
    of another one would be this rank's alone."""
    function, padding = keywords.get("mask_function"), keywords.get("attention_mask")
    if padding is not None and not bool(padding.all()):
        raise ArgumentError(f"attention_mask (of shape {tuple(padding.shape)}) must not hide tokens in "
                            "context_parallel; its cu_seqlens says where documents begin")
    parts = _parts(function) if _is(function, "and_masks.") else (function,)
    known = ("causal_mask_function", "bidirectional_mask_function", "sliding_window_overlay.",
             "sliding_window_bidirectional_overlay.")
    if not all(any(_is(part, name) for name in known) for part in parts):
        raise ArgumentError(f"the mask of this layer ({getattr(function, '__qualname__', function)}) is not supported "
                            "in context_parallel; expected causal or bidirectional layers, with or without a window")


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
    found.diagonal_name, found.is_packed, found.packed_window = mask.diagonal_name, True, None
    return found


class LayerMask(NamedTuple):
    """The mask of a layer: a function, a tensor, or none where its sequences are a packed call."""

    function: MaskFunction | None = None
    tensor: Tensor | None = None
    is_packed_call: bool = False


def of_layer(mask: MaskFunction, query: Tensor, shape: Shape, sequences: Sequences | None,
             needs_tensor: bool) -> LayerMask:
    """It is a tensor where the layer's attention needs one: its shape is another, a graph is traced, or
    keywords mark sequences that the mask has to agree with."""
    if needs_tensor or mask.made is not None or (
            (shape.batch, shape.rows, shape.keys) != (mask.shape[0], *mask.shape[2:])) or (
            _call.kind_of(query) is _call.MORE) or (sequences is not None and sequences.named):
        return LayerMask(tensor=mask.tensor())
    if sequences is None:
        return LayerMask(mask)
    if mask.packed_window is not None and shape.is_causal and shape.chunk is None and (
            mask.packed_window == (shape.window or 0)) and sequences.starts_q is not None:
        return LayerMask(is_packed_call=True)
    if mask.is_packed:
        return LayerMask(mask)
    if sequences.ids_kv.shape[1] != shape.keys or len(mask.functions.captured) > sf.MAX_CAPTURED - 2:
        return LayerMask(tensor=mask.tensor())
    return LayerMask(_restricted(mask, sequences))


def call_of(mask: MaskFunction, options: Options) -> Call:
    return Call(options._replace(diagonal=mask.diagonal_name), mask.functions)


__all__ = ["LayerMask", "MaskFunction", "attend", "call_of", "make_mask", "of_layer"]
