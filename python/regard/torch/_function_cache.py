"""Expressions of functions that were traced before.

A function is known by its code and by what that can read: its closure, its defaults and the globals that it
names. Numbers are compared by value, tensors by type and shape, and those of this call are looked up anew.
Functions that read anything else (attributes of objects, lists of the caller's, random numbers) are traced
at every call.
"""

from __future__ import annotations

import dis
import functools
import math
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..score_functions import Expression, resolve
from ._function_math import Extents, Untraceable
from ._function_tables import variables_of
from ._function_trace import Trace, TracingError, trace_functions
from ._function_values import prepared

_MODULES = frozenset({torch, torch.nn.functional, math, operator, functools})
_VALUES = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, complex)
_MAX_ENTRIES = 256


class Functions(NamedTuple):
    """The functions of a call as regard.attention takes them; "" where there is none."""

    score: str
    mask: str
    captured: list[Tensor]
    differentiable: list[bool]  # which of `captured` the score function reads
    needs_blocks: bool = False  # where the mask hides whole tiles is not known without evaluating it


class _Unknown(Exception):
    """A function reads what cannot be compared."""


class _Reads(NamedTuple):
    """What a code object names outside of itself."""

    names: tuple[str, ...]
    is_plain: bool


_reads: dict[types.CodeType, _Reads] = {}
_WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME", "LOAD_CLASSDEREF"})


def _reads_of(code: types.CodeType) -> _Reads:
    known = _reads.get(code)
    if known is None:
        names: set[str] = set()
        is_plain = True
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL":
                names.add(instruction.argval)
            is_plain = is_plain and instruction.opname not in _WRITES and not (
                instruction.opname in ("STORE_DEREF", "DELETE_DEREF")
                and instruction.argval in code.co_freevars)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                found = _reads_of(inner)
                names.update(found.names)
                is_plain = is_plain and found.is_plain
        known = _reads[code] = _Reads(tuple(sorted(names)), is_plain)
    return known


class _Closure:
    """What functions read: `key` compares it, `tensors` are those of this call."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._of_id: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> Any:
        if isinstance(value, float):
            return float, value, math.copysign(1.0, value)
        if isinstance(value, _VALUES):
            return type(value), value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list, torch.Size):
            return type(value), tuple([self.key(x) for x in value])
        if type(value) is dict and all(isinstance(name, (str, int)) for name in value):
            return dict, tuple([(name, self.key(x)) for name, x in value.items()])
        if isinstance(value, functools.partial):
            return functools.partial, self.key(value.func), self.key(value.args), self.key(value.keywords)
        if isinstance(value, types.ModuleType) and value in _MODULES:
            return types.ModuleType, value.__name__
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)) or value in _TYPES:
            return type(value), id(value)
        raise _Unknown

    def _tensor(self, tensor: Tensor) -> Any:
        at = self._of_id.get(id(tensor))
        if at is None:
            at = self._of_id[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return Tensor, at, tensor.dtype, tuple(tensor.shape), tensor.requires_grad, tensor.device

    def _function(self, function: types.FunctionType) -> Any:
        seen = self._seen.get(id(function))
        if seen is not None:
            return types.FunctionType, seen
        self._seen[id(function)] = len(self._seen)
        code = function.__code__
        reads = _reads_of(code)
        if not reads.is_plain:
            raise _Unknown
        parts = []
        for cell in function.__closure__ or ():
            try:
                parts.append(self.key(cell.cell_contents))
            except ValueError:  # an empty cell
                raise _Unknown from None
        namespace = function.__globals__
        parts += [self.key(namespace[name]) if name in namespace else name for name in reads.names]
        return (code, tuple(parts), self.key(function.__defaults__), self.key(function.__kwdefaults__))


_TYPES = frozenset({int, float, bool, tuple, list, Tensor, torch.Size})


class _Texts(NamedTuple):
    """What of Functions does not change from call to call."""

    score: str
    mask: str
    differentiable: tuple[bool, ...]
    needs_blocks: bool


class _Entry(NamedTuple):
    """Expressions, and where in the closure the tensors that they read are."""

    texts: _Texts
    places: tuple[int | Tensor, ...]  # or a table that was made of indices
    ranges: dict[int, tuple[float, float]]  # what the integers of the tensor at a place were
    checked: dict[int, tuple[Any, int]]     # the tensor whose integers were last found to be there


_entries: dict[Any, _Entry] = {}


def _ranges_hold(entry: _Entry, tensors: list[Tensor]) -> bool:
    """Whether integers that were read while tracing are still what they could be."""
    for place, (low, high) in entry.ranges.items():
        tensor = tensors[place]
        counted = not tensor.is_inference()
        known = entry.checked.get(place)
        if known is not None and counted and known[0]() is tensor and known[1] == tensor._version:
            continue
        if tensor.numel():
            least, most = torch.aminmax(tensor.detach())
            if float(least) < low or float(most) > high:
                return False
        if counted:
            entry.checked[place] = (weakref.ref(tensor), tensor._version)
    return True


def _reads_pairs(node: Expression) -> bool:
    """Whether an element that is read depends on both query and key: bounds of such are too wide."""
    variables = variables_of(node) if node.op == "gather" else set()
    return {"kv_idx"} < variables and not variables.isdisjoint({"q_idx", "q_pos"}) or any(
        map(_reads_pairs, node.args))


def _texts(score: Expression | None, mask: Expression | None) -> tuple[_Texts, list[Tensor]]:
    """The texts, and the tensors that they read; none of a score that is as it was, or of a mask that hides
    nothing."""
    given = []
    if score is not None and score.op != "score":
        given.append(score)
    of_score = len(given)
    if mask is not None and not (mask.op == "constant" and mask.value):
        given.append(mask)
    try:
        texts, tensors = resolve(*given)
    except ValueError as error:
        raise TracingError(f"score_mod and mask_mod: {error}") from None
    read = set() if not of_score else {id(x) for x in resolve(given[0])[1]}
    has_mask = len(texts) > of_score
    return _Texts(texts[0] if of_score else "", texts[-1] if has_mask else "",
                  tuple([id(x) in read for x in tensors]), has_mask and _reads_pairs(given[-1])), tensors


def _remember(key: Any, closure: _Closure, trace: Trace, texts: _Texts, tensors: list[Tensor]) -> None:
    places: dict[int, Any] = {id(x): at for at, x in enumerate(closure.tensors)}
    tables = {id(x): x for x in trace.tables}
    read = [x for x in trace.arithmetic.ranges.values() if id(x) not in tables]
    if any(id(x) not in places and id(x) not in tables for x in (*tensors, *read)):
        return
    if len(_entries) >= _MAX_ENTRIES:
        _entries.clear()
    _entries[key] = _Entry(texts, tuple([
        places[id(x)] if id(x) in places else tables[id(x)] for x in tensors]), {
        places[id(x)]: trace.arithmetic.range_of(x) for x in read}, {})


def functions_of(score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None,
                 extents: Extents, dtype: torch.dtype, device: torch.device) -> Functions:
    """The functions of a call, traced where they are not known.

    Raises TracingError for what has no equivalent.
    """
    closure, key = _Closure(), None
    try:
        key = (closure.key(score_mod), closure.key(mask_mod), extents, dtype, device,
               torch.is_grad_enabled())
        entry = _entries.get(key)
    except _Unknown:
        entry = None
    if entry is not None and _ranges_hold(entry, closure.tensors):
        return _prepared(entry.texts, [closure.tensors[at] if isinstance(at, int) else at
                                       for at in entry.places])
    trace, score, mask = trace_functions(score_mod, mask_mod, extents, dtype, device,
                                         {id(x) for x in closure.tensors} if key is not None else set())
    texts, tensors = _texts(score, mask)
    if key is not None and trace.repeatable:
        _remember(key, closure, trace, texts, tensors)
    return _prepared(texts, tensors)


def prepared_functions(score: Expression | None, mask: Expression | None) -> Functions:
    """Those of expressions that were made elsewhere."""
    return _prepared(*_texts(score, mask))


def _prepared(texts: _Texts, tensors: list[Tensor]) -> Functions:
    try:
        captured = [prepared(x if read else x.detach()) for x, read in zip(tensors, texts.differentiable)]
        return Functions(texts.score, texts.mask, captured, list(texts.differentiable), texts.needs_blocks)
    except Untraceable as error:
        raise TracingError(str(error)) from None
