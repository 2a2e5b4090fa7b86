"""Numbers of a traced function: tensors without memory whose elements are Expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

from ..score_functions import INT, REAL, Captured, Expression, constant
from ._function_math import Arithmetic, Untraceable, kind_of

MAX_ELEMENTS = 64  # of a tensor whose elements a function computes with one by one
_INDEX_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_INTEGERS = (torch.int32, torch.int64, torch.bool, torch.uint8)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

Nodes = Any  # a numpy array of Expressions


class Traced(Tensor):
    """A number, or a few, that a traced function computes with. Its operations are recorded.

    `nodes` holds its elements; of what is left of a captured tensor once indices are given they are
    made when they are needed.
    """

    trace: Any
    rest: tuple[Tensor, tuple[Expression, ...]] | None
    elements: Nodes | None

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any,  # type: ignore[override]
                           args: Any = (), kwargs: Any = None) -> Any:
        trace = next(x.trace for x in leaves((args, kwargs)) if type(x) is Traced)
        return trace.run(func, args, kwargs or {})

    @property
    def nodes(self) -> Nodes:
        if self.elements is None:
            assert self.rest is not None
            self.elements = elements_of(self.trace, *self.rest, tuple(self.shape))
        return self.elements

    def __repr__(self, **unused: Any) -> str:  # type: ignore[override]
        return f"Traced(shape={tuple(self.shape)}, dtype={self.dtype})"


_make: Callable[..., Traced] = Tensor._make_wrapper_subclass


def traced(trace: Any, nodes: Nodes | Expression, dtype: torch.dtype, device: torch.device) -> Traced:
    """A Traced of elements that an array, or a single Expression, holds."""
    array = nodes if isinstance(nodes, numpy.ndarray) else of_array((), lambda _: nodes)
    made = _make(Traced, array.shape, dtype=dtype, device=device)
    made.trace, made.elements, made.rest = trace, array, None
    return made


def of_rows(trace: Any, tensor: Tensor, indices: tuple[Expression, ...]) -> Traced:
    """What is left of a captured tensor once it has its first indices."""
    made = _make(Traced, tensor.shape[len(indices):], dtype=tensor.dtype, device=tensor.device)
    made.trace, made.elements, made.rest = trace, None, (tensor, indices)
    return made


def elements_of(trace: Any, tensor: Tensor, indices: tuple[Expression, ...],
                shape: tuple[int, ...]) -> Nodes:
    """Each element of such a rest."""
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise Untraceable(f"{count} elements of a tensor at once are too many; expected an index for each "
                          f"of its dimensions, or at most {MAX_ELEMENTS} elements")
    return of_array(shape, lambda at: element(trace, tensor, (*indices, *(constant(int(x)) for x in at))))


def of_array(shape: tuple[int, ...], make: Callable[[tuple[int, ...]], Any]) -> Nodes:
    array = numpy.empty(shape, dtype=object)
    if not shape:
        array[()] = make(())
        return array
    for at in numpy.ndindex(*shape):
        array[at] = make(at)
    return array


def leaves(tree: Any) -> Iterator[Any]:
    """What tuples, lists and dicts hold, at any depth."""
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from leaves(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from leaves(item)
    else:
        yield tree


def has_traced(tree: Any) -> bool:
    return any(type(x) is Traced for x in leaves(tree))


def prepared(tensor: Tensor) -> Tensor:
    """A captured tensor as the library takes it: of 1 to 4 dimensions, of a type that it reads."""
    if tensor.dtype not in _INTEGERS and tensor.dtype not in _FLOATS:
        if tensor.is_floating_point() or tensor.is_complex():
            raise Untraceable(f"a captured tensor of {tensor.dtype} must be float64, float32, bfloat16 "
                              "or float16")
        tensor = tensor.to(torch.int64 if tensor.dtype == torch.uint32 else torch.int32)
    if tensor.dim() == 0:
        return tensor.reshape(1)
    return tensor if tensor.dim() <= 4 else tensor.flatten(0, tensor.dim() - 4)


class Sources:
    """The tensors that a function reads, each once."""

    def __init__(self) -> None:
        self._of_id: dict[int, tuple[Tensor, Captured]] = {}

    def of(self, tensor: Tensor) -> Captured:
        known = self._of_id.get(id(tensor))
        if known is None:
            shape = tuple(tensor.shape)
            if len(shape) == 0:
                shape = (1,)
            elif len(shape) > 4:
                shape = tuple(tensor.flatten(0, len(shape) - 4).shape)
            if tensor.numel() == 0:
                raise Untraceable(f"a captured tensor of shape {tuple(tensor.shape)} has no elements")
            if tensor.dtype not in _INTEGERS and tensor.dtype not in _FLOATS and (
                    tensor.is_floating_point() or tensor.is_complex()):
                prepared(tensor)
            kind = REAL if tensor.is_floating_point() else INT
            known = self._of_id[id(tensor)] = (tensor, Captured(tensor, kind, shape))
        return known[1]


def element(trace: Any, tensor: Tensor, indices: tuple[Expression, ...]) -> Expression:
    """One element of a captured tensor; indices below 0 count from the end."""
    arithmetic: Arithmetic = trace.arithmetic
    captured, shape = trace.sources.of(tensor), tuple(tensor.shape)
    wrapped = [arithmetic.index(index, extent) for index, extent in zip(indices, shape)]
    if not shape:
        wrapped = [constant(0)]
    while len(wrapped) > 4:  # the first dimensions as one
        first = arithmetic.operate("*", wrapped[0], constant(shape[1]))
        wrapped[:2] = [arithmetic.operate("+", first, wrapped[1])]
        shape = (shape[0] * shape[1], *shape[2:])
    return arithmetic.convert(captured[tuple(wrapped)], kind_of(tensor.dtype))


def check_index(index: Tensor) -> None:
    if index.dtype == torch.bool:
        raise Untraceable("an index of bools has no equivalent; expected torch.where")
    if index.dtype not in _INDEX_TYPES:
        raise Untraceable(f"an index of {index.dtype} must be an integer")
