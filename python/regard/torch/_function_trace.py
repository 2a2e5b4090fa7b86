"""Traces Python functions of FlexAttention, score_mod and mask_mod, into expressions.

The function is called once with tensors that have no memory: each operation of PyTorch on them is one of
the language (_function_ops). What has no equivalent is an error that names the line.
"""

from __future__ import annotations

import inspect
import linecache
import os
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import score_functions as sf
from ..score_functions import BOOL, REAL, Expression, constant
from ._function_math import Arithmetic, Extents, Untraceable, kind_of
from ._function_ops import GATHERS, RULES
from ._function_tables import tabulate
from ._function_values import (
    MAX_ELEMENTS,
    Nodes,
    Sources,
    Traced,
    check_index,
    element,
    has_traced,
    leaves,
    of_array,
    of_rows,
    traced,
)
from ._scopes import ArgumentError

SCORE_ARGUMENTS = ("score", "b", "h", "q_idx", "kv_idx")
_INSIDE = tuple(os.path.dirname(os.path.abspath(path)) + os.sep
                for path in (torch.__file__, sf.__file__))
_CONSTANT_FACTORIES = frozenset(filter(None, (
    torch.tensor, torch.as_tensor, torch.scalar_tensor, torch.full, torch.zeros, torch.ones,
    torch.arange, getattr(torch, "asarray", None))))


class TracingError(ArgumentError, NotImplementedError):
    """A score_mod or mask_mod that has no equivalent in the language of score functions.

    The message names the function, the file, the line and the operation. It is a regard.torch.ArgumentError
    and a NotImplementedError.

        >>> import torch, regard.torch
        >>> q = torch.ones(1, 2, 5, 64)
        >>> try:
        ...     regard.torch.flex_attention(q, q, q, lambda score, b, h, q_idx, kv_idx: score.erf())
        ... except regard.torch.TracingError as error:
        ...     print("erf" in str(error))
        True

    More: `python -m regard docs pytorch`.
    """


TracingError.__module__ = "regard.torch"  # its public name, in tracebacks and pickles


class Trace:
    """One run of a function. `run` is what an operator of PyTorch on traced numbers becomes."""

    def __init__(self, extents: Extents, device: torch.device, grad_enabled: bool) -> None:
        self.arithmetic = Arithmetic(extents)
        self.sources = Sources()
        self.device = device
        self.grad_enabled = grad_enabled
        self.leaves: Set[int] = frozenset()   # ids of the tensors that the function's closure holds
        self.made: list[Tensor] = []    # tensors made of constants while the function ran
        self.tables: list[Tensor] = []  # made of indices alone
        self.repeatable = True          # the same closure gives the same expression
        self.has_plain = False          # the operation under way has operands that are not traced
        self.out_shape: tuple[int, ...] = ()
        self.out_dim = 0

    def nodes(self, x: Any) -> Nodes:
        """The elements of an operand."""
        if type(x) is Traced:
            return x.nodes
        if not isinstance(x, Tensor):
            if not isinstance(x, (bool, int, float)):
                raise Untraceable(f"an operand ({type(x).__name__}) must be a number or a tensor")
            return _constants(x, ())
        if any(x is made for made in self.made):
            return _constants(x.tolist(), tuple(x.shape))
        if x.dim() == 0 and not x.requires_grad and id(x) not in self.leaves:
            # A tensor that the function was not given is a number that PyTorch has made one of.
            self.repeatable = self.repeatable and not self.has_plain
            return _constants(x.item(), ())
        if x.numel() > MAX_ELEMENTS:
            raise Untraceable(f"a captured tensor of shape {tuple(x.shape)} needs an index for each of its "
                              f"dimensions here, or at most {MAX_ELEMENTS} elements")
        return of_array(tuple(x.shape), lambda at: element(
            self, x, tuple(constant(int(i)) for i in at)))

    def gather(self, tensor: Tensor, index: tuple[Any, ...]) -> Tensor:
        """tensor[index], of an index with traced numbers in it."""
        if type(tensor) is Traced:
            return self._gather_traced(tensor, index)
        if tensor.is_sparse or tensor.is_nested or tensor.device != self.device:
            raise Untraceable(f"a captured tensor on {tensor.device} must be dense, and on the query's "
                              f"device, {self.device}")
        at: list[Any] = []
        kept: list[int] = []  # dimensions that stay, in front of which the traced ones are brought
        if any(not isinstance(x, (Tensor, int)) or isinstance(x, bool) for x in index):
            places = [slice(None) if isinstance(x, Tensor) else x for x in index]
            tensor, index = _sliced(tensor, places, index)
        for dim, x in enumerate(index):
            if x is None:
                kept.append(dim)
            else:
                at.append(x)
        if kept and kept[0] < len(at):
            order = [dim for dim, x in enumerate(index) if x is not None]
            tensor = tensor.movedim(order, list(range(len(order))))
        if len(at) > tensor.dim():
            raise Untraceable(f"a tensor of {tensor.dim()} dimensions has no {len(at)} indices")
        nodes = tuple(self._index_node(x) for x in at)
        if len(nodes) < tensor.dim():
            return of_rows(self, tensor, nodes)
        return traced(self, element(self, tensor, nodes), tensor.dtype, self.device)

    def _index_node(self, x: Any) -> Expression:
        if not isinstance(x, Tensor):
            return constant(int(x))
        check_index(x)
        nodes = self.nodes(x)
        if nodes.shape != ():
            raise Untraceable(f"an index of shape {nodes.shape} must be a single number")
        node = nodes[()]
        assert isinstance(node, Expression)
        return node

    def _gather_traced(self, tensor: Traced, index: tuple[Any, ...]) -> Tensor:
        if all(isinstance(x, (int, Tensor)) and not isinstance(x, bool) for x in index) and (
                tensor.elements is None and tensor.rest is not None):
            source, indices = tensor.rest
            nodes = (*indices, *(self._index_node(x) for x in index))
            if len(nodes) > source.dim():
                raise Untraceable(f"a tensor of {source.dim()} dimensions has no {len(nodes)} indices")
            if len(nodes) < source.dim():
                return of_rows(self, source, nodes)
            return traced(self, element(self, source, nodes), source.dtype, self.device)
        if has_traced(index):
            raise Untraceable("an element of numbers that the function has computed, at an index that is "
                              "one of them, has no equivalent")
        return traced(self, _array(tensor.nodes[index]), tensor.dtype, self.device)

    def run(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """An ATen operator with a traced number among its operands."""
        name = func.overloadpacket.__name__
        if name in ("_local_scalar_dense", "item", "is_nonzero", "equal"):
            raise Untraceable("the value of a traced number is not known: if, while, and, or, not, min(), "
                              "max(), int() and float() need one; expected torch.where, & | ~, "
                              "torch.minimum and torch.maximum")
        writes = func._schema.is_mutable
        if writes:
            return self._run_in_place(func, args, keywords)
        if name in RULES:
            return self._by_rule(func, args, keywords)
        return self._decomposed(func, args, keywords)

    def _by_rule(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        rule = RULES[name]
        if name in GATHERS:
            return rule(self, args[0].dtype, *args, **keywords)
        inputs = _stand_ins((args, keywords))
        out = func(*inputs[0], **inputs[1])
        first = out if isinstance(out, Tensor) else out[0] if isinstance(out, (list, tuple)) else None
        if first is None or (isinstance(out, tuple) and name != "log_sigmoid_forward"):
            raise Untraceable(f"{func} has no equivalent")
        self.out_shape, self.out_dim = tuple(first.shape), first.dim()
        made = rule(self, first.dtype, *args, **keywords)
        if isinstance(made, (Tensor, list)):
            return made
        made = of_array(made.shape, lambda at: self.arithmetic.wrapped(made[at], first.dtype))
        result = traced(self, made, first.dtype, self.device)
        return (result, result) if isinstance(out, tuple) else result

    def _run_in_place(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        plain = name[:-1] if not name.endswith("__") else f"__{name[3:]}"
        if name == "copy_":
            result: Any = args[1]
        elif name.endswith("_") and type(args[0]) is Traced and hasattr(torch.ops.aten, plain):
            packet = getattr(torch.ops.aten, plain)
            overload = func._overloadname
            function = getattr(packet, overload) if overload in packet.overloads() else packet
            result = self.run(function, args, keywords) if hasattr(function, "_schema") else function(
                *args, **keywords)
        else:
            raise Untraceable(f"{func} writes to a tensor, which has no equivalent")
        kind, dtype = kind_of(args[0].dtype), args[0].dtype
        nodes = self.nodes(result)
        args[0].elements = of_array(tuple(args[0].shape), lambda at: self.arithmetic.wrapped(
            self.arithmetic.convert(nodes[at if nodes.shape else ()], kind), dtype))
        return args[0]

    def _decomposed(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """An operator without a rule, by others where PyTorch knows how."""
        no_equivalent = Untraceable(f"torch.{func.overloadpacket.__name__} has no equivalent")
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            made = func.decompose(*args, **keywords)
            if made is not NotImplemented:
                return made
        from torch._decomp import decomposition_table

        decomposition = decomposition_table.get(func)
        if decomposition is None:
            raise no_equivalent
        try:
            return decomposition(*args, **keywords)
        except Exception:  # it reads the numbers, or needs an operator without a rule
            raise no_equivalent from None


def _constants(value: Any, shape: tuple[int, ...]) -> Nodes:
    """Numbers as an array of constants."""
    def at(place: tuple[int, ...]) -> Expression:
        number = value
        for i in place:
            number = number[i]
        try:
            return constant(number)
        except ValueError as error:
            raise Untraceable(str(error)) from None

    return of_array(shape, at)


def _array(item: Any) -> Nodes:
    return of_array((), lambda _: item) if isinstance(item, Expression) else item


def _sliced(tensor: Tensor, places: list[Any], index: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
    """The tensor once what is no number of an index (slices, None, ...) is applied, and an index of numbers
    at the dimensions where they stand; None at others."""
    if sum(x is Ellipsis for x in places) > 1:
        raise Untraceable("an index has at most one ellipsis")
    if Ellipsis in places:
        at = next(i for i, x in enumerate(places) if x is Ellipsis)
        fill = tensor.dim() - sum(x is not None and x is not Ellipsis for x in places)
        places = [*places[:at], *[slice(None)] * fill, *places[at + 1:]]
        index = (*index[:at], *[slice(None)] * fill, *index[at + 1:])
    left: list[Any] = []
    for place, x in zip(places, index):
        if isinstance(x, Tensor):
            left.append(x)
        elif x is None or isinstance(x, slice):
            if has_traced((x.start, x.stop, x.step) if isinstance(x, slice) else ()):
                raise Untraceable("a slice of traced numbers has no equivalent")
            left.append(None)
        elif not isinstance(x, int) or isinstance(x, bool):
            raise Untraceable(f"an index ({type(x).__name__}) must be numbers and slices")
    return tensor[tuple(places)], tuple(left)


_ones: dict[tuple[tuple[int, ...], torch.dtype], Tensor] = {}


def _stand_ins(tree: Any) -> Any:
    """The operands as tensors of ones, of which PyTorch finds out what type and shape the result has. Those
    without memory take ten times as long."""
    if isinstance(tree, Tensor):
        key = (tuple(tree.shape), tree.dtype)
        made = _ones.get(key)
        if made is None:
            made = torch.ones(key[0], dtype=key[1])
            if len(_ones) < 256:
                _ones[key] = made
        return made
    if isinstance(tree, (tuple, list)):
        return type(tree)([_stand_ins(x) for x in tree])
    if isinstance(tree, dict):
        return {name: _stand_ins(x) for name, x in tree.items()}
    return torch.device("cpu") if isinstance(tree, torch.device) else tree


class _Mode(TorchFunctionMode):
    """What sees the function's calls before PyTorch does: indices that are traced numbers, and whether
    anything depends on more than the closure."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        trace = self.trace
        is_get = getattr(func, "__name__", "") == "__get__"
        if not has_traced((args, kwargs)):
            result = func(*args, **kwargs)
            if is_get and not isinstance(result, Tensor):
                return result
            if func in _CONSTANT_FACTORIES and not any(isinstance(x, Tensor) for x in leaves((args, kwargs))):
                trace.made.append(result)
            else:
                trace.repeatable = trace.repeatable and func in _FACTS
            return result
        if is_get:
            return func(*args, **kwargs)
        if trace.grad_enabled and not torch.is_grad_enabled():
            raise Untraceable("torch.no_grad has no equivalent: gradients flow through the whole of a score "
                              "function")
        if func is Tensor.__getitem__:
            index = args[1]
            return trace.gather(args[0], tuple(index) if isinstance(index, (tuple, list)) else (index,))
        if func is Tensor.__setitem__:
            raise Untraceable("writing to an element has no equivalent; expected torch.where")
        trace.has_plain = any(isinstance(x, Tensor) and type(x) is not Traced and
                              not any(x is made for made in trace.made) for x in leaves((args, kwargs)))
        with torch.no_grad():
            try:
                result = func(*args, **kwargs)
            except Untraceable:
                found = tabulate(trace, func, args, kwargs)
                if found is None:
                    raise
                return trace.gather(found[0], tuple(
                    traced(trace, getattr(sf, name), torch.int64, trace.device) for name in found[1]))
        if isinstance(result, Tensor) and type(result) is not Traced and func is Tensor.new_tensor:
            trace.made.append(result)
        return result


_FACTS = frozenset({Tensor.size, Tensor.dim, Tensor.numel, Tensor.ndimension, Tensor.__len__,
                    Tensor.is_floating_point, Tensor.stride, Tensor.is_complex})


def _user_place(error: BaseException, function: Any) -> tuple[str, int]:
    """File and line of the innermost call that is neither PyTorch's nor this package's."""
    place = None
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not os.path.abspath(name).startswith(_INSIDE):
            place = (name, traceback.tb_lineno)
        traceback = traceback.tb_next
    if place is None:
        code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
        place = (code.co_filename, code.co_firstlineno) if code is not None else ("?", 0)
    return place


def _failure(error: Exception, function: Any, what: str) -> TracingError:
    file, line = _user_place(error, function)
    source = linecache.getline(file, line).strip()
    name = getattr(function, "__qualname__", type(function).__name__)
    where = f'{what} ({name}), "{file}", line {line}'
    return TracingError(f"{where}: {error}" + (f"\n    {source}" if source else ""))


def _result(trace: Trace, function: Any, inputs: list[Tensor], what: str) -> Expression:
    """What the function returns, a bool of a mask_mod and a number of a score_mod."""
    try:
        with _Mode(trace):
            result = function(*inputs)
        if not isinstance(result, (Tensor, bool, int, float)):
            raise Untraceable(f"the result ({type(result).__name__}) must be a tensor")
        nodes = trace.nodes(result)
        if nodes.shape != ():
            raise Untraceable(f"the result (of shape {nodes.shape}) must be a single number")
        node: Expression = nodes[()]
        if what == "mask_mod" and node.type != BOOL:
            raise Untraceable(f"the result (of {_dtype_name(result)}) must be torch.bool, True where a "
                              "query may attend")
        if what == "score_mod":
            node = trace.arithmetic.convert(node, REAL)
        sf.check_size(node)
        return node
    except TracingError:
        raise
    except (Untraceable, ValueError) as error:
        raise _failure(error, function, what) from None
    except (TypeError, RuntimeError, IndexError, NotImplementedError) as error:
        raise _failure(error, function, what) from error


def trace_score(trace: Trace, function: Any, dtype: torch.dtype) -> Expression:
    """The expression of a score_mod whose scores have the dtype."""
    check_arity(function, "score_mod", SCORE_ARGUMENTS)
    score = traced(trace, sf.score, dtype, trace.device)
    return _result(trace, function, [score, *_indices(trace, _INDICES)], "score_mod")


def trace_mask(trace: Trace, function: Any, indices: tuple[Expression, ...]) -> Expression:
    """The expression of a mask_mod of these indices."""
    check_arity(function, "mask_mod", SCORE_ARGUMENTS[1:])
    grad_enabled, trace.grad_enabled = trace.grad_enabled, False
    with torch.no_grad():
        node = _result(trace, function, _indices(trace, indices), "mask_mod")
    trace.grad_enabled = grad_enabled
    return node


_INDICES = (sf.b, sf.h, sf.q_idx, sf.kv_idx)


def _indices(trace: Trace, nodes: tuple[Expression, ...]) -> list[Tensor]:
    return [traced(trace, node, torch.int64, trace.device) for node in nodes]


def _dtype_name(result: Any) -> str:
    return str(result.dtype) if isinstance(result, Tensor) else type(result).__name__


def check_arity(function: Any, what: str, arguments: tuple[str, ...]) -> None:
    if not callable(function):
        raise TypeError(f"{what} ({type(function).__name__}) must be a function of ({', '.join(arguments)})")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ArgumentError(f"{what} ({name}{signature}) must take {len(arguments)} arguments, "
                            f"({', '.join(arguments)})") from None


def trace_functions(score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None,
                    extents: Extents, dtype: torch.dtype, device: torch.device,
                    held: Set[int] = frozenset()) -> tuple[Trace, Expression | None, Expression | None]:
    """The expressions of a call's functions, which share their captured tensors; held: ids of the tensors
    in their closures."""
    trace = Trace(extents, device, torch.is_grad_enabled())
    trace.leaves = held
    score = None if score_mod is None else trace_score(trace, score_mod, dtype)
    mask = None if mask_mod is None else trace_mask(trace, mask_mod, _INDICES)
    return trace, score, mask
