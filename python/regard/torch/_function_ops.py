"""PyTorch's operators on the numbers of a traced function.

A rule gets the trace, the result's dtype (as PyTorch would have it), and the operator's arguments, and
returns the elements of the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from ..score_functions import BOOL, INT, REAL, Expression, constant
from ._function_math import Untraceable, both, either, is_constant, kind_of, negated, select
from ._function_values import Nodes, check_index, of_array, traced

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
GATHERS = frozenset({"index", "embedding", "index_select", "take"})  # their rules make tensors


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for name in names:
            RULES[name] = rule
        return rule

    return add


def each(function: Callable[..., Expression], *arrays: Nodes) -> Nodes:
    """The function of each element, of arrays that broadcast."""
    if not any(array.shape for array in arrays):
        return of_array((), lambda at: function(*(array[at] for array in arrays)))
    shape = numpy.broadcast_shapes(*(array.shape for array in arrays))
    spread = [numpy.broadcast_to(array, shape) for array in arrays]
    return of_array(shape, lambda at: function(*(array[at] for array in spread)))


def dtype_of(x: Any) -> torch.dtype:
    if isinstance(x, Tensor):
        return x.dtype
    if isinstance(x, bool):
        return torch.bool
    return torch.int64 if isinstance(x, int) else torch.get_default_dtype()


def joined_kind(*operands: Any) -> str:
    """The kind of numbers that operands are computed as."""
    kinds = [kind_of(dtype_of(x)) for x in operands]
    return REAL if REAL in kinds else INT if INT in kinds else BOOL


def _number(x: Any) -> Any:
    """A Python number that an operator's argument is; None of a traced one."""
    if isinstance(x, (bool, int, float)):
        return x
    if isinstance(x, Tensor):
        return None
    raise Untraceable(f"an operand ({type(x).__name__}) must be a number or a tensor")


def _constant_of(trace: Any, x: Any) -> Any:
    """The number that every element is; None where they are others."""
    nodes = trace.nodes(x)
    if nodes.shape == () and is_constant(nodes[()]):
        return nodes[()].value
    return None


def _combining(op: str) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any, y: Any, alpha: Any = 1) -> Nodes:
        kind = kind_of(dtype)
        if kind == BOOL:  # True + True is True, and True * False is False
            function = either if op in ("+", "max") else both
            return each(function, trace.nodes(x), trace.nodes(y))
        math_of = trace.arithmetic
        second = trace.nodes(y)
        if alpha != 1:
            second = each(lambda b: math_of.combine("*", b, constant(alpha), kind), second)
        return each(lambda a, b: math_of.combine(op, a, b, kind), trace.nodes(x), second)

    return rule


for _name, _op in (("add", "+"), ("sub", "-"), ("mul", "*"), ("minimum", "min"), ("maximum", "max")):
    RULES[_name] = _combining(_op)


@_rule("rsub")
def _rsub(trace: Any, dtype: torch.dtype, /, x: Any, y: Any, alpha: Any = 1) -> Nodes:
    return RULES["sub"](trace, dtype, y, x, alpha)


def _comparing(op: str, swaps: bool) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
        kind = joined_kind(x, y)
        if swaps:
            x, y = y, x
        return each(lambda a, b: trace.arithmetic.compare(op, a, b, kind), trace.nodes(x), trace.nodes(y))

    return rule


for _name, _op, _swaps in (("lt", "<", False), ("le", "<=", False), ("gt", "<", True), ("ge", "<=", True),
                           ("eq", "==", False), ("ne", "!=", False)):
    RULES[_name] = _comparing(_op, _swaps)


@_rule("div")
def _div(trace: Any, dtype: torch.dtype, /, x: Any, y: Any, rounding_mode: str | None = None) -> Nodes:
    math_of = trace.arithmetic
    if rounding_mode is None:
        return each(math_of.divide, trace.nodes(x), trace.nodes(y))
    divide = math_of.floor_divide if rounding_mode == "floor" else math_of.truncate_divide
    return each(lambda a, b: divide(a, b, kind_of(dtype)), trace.nodes(x), trace.nodes(y))


@_rule("floor_divide")
def _floor_divide(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
    return _div(trace, dtype, x, y, "floor")


@_rule("remainder")
def _remainder(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
    return each(lambda a, b: trace.arithmetic.remainder(a, b, kind_of(dtype)), trace.nodes(x),
                trace.nodes(y))


@_rule("fmod")
def _fmod(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
    if kind_of(dtype) != INT:
        raise Untraceable("fmod of floats has no equivalent; expected integers")
    math_of = trace.arithmetic

    def left(a: Expression, b: Expression) -> Expression:
        whole = math_of.truncate_divide(a, b, INT)
        return math_of.operate("-", a, math_of.operate("*", whole, b))

    return each(left, trace.nodes(x), trace.nodes(y))


def _of_reals(op: str) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any) -> Nodes:
        return each(lambda a: trace.arithmetic.operate(op, trace.arithmetic.convert(a, REAL)),
                    trace.nodes(x))

    return rule


for _name in ("exp", "log", "sqrt", "tanh", "sigmoid"):
    RULES[_name] = _of_reals(_name)


def _unary(name: str, make: Callable[[Any, Expression], Expression], kind: str | None = REAL) -> None:
    """A rule for one operand, of that kind, or of the result's."""
    def rule(trace: Any, dtype: torch.dtype, /, x: Any) -> Nodes:
        to = kind or kind_of(dtype)
        return each(lambda a: make(trace.arithmetic, trace.arithmetic.convert(a, to)), trace.nodes(x))

    RULES[name] = rule


def _times(factor: float) -> Callable[[Any, Expression], Expression]:
    return lambda m, x: m.operate("*", m.operate("log", x), constant(factor))


def _real_sum(m: Any, x: Expression, y: float) -> Expression:
    return m.operate("+", x, constant(y))


def _sign(m: Any, x: Expression) -> Expression:
    one = constant(1 if x.type == INT else 1.0)
    zero = constant(0 if x.type == INT else 0.0)
    negative = select(m.compare("<", x, zero, x.type), m.operate("neg", one), zero)
    return select(m.compare("<", zero, x, x.type), one, negative)


def _softplus(m: Any, x: Expression) -> Expression:
    return m.operate("log", _real_sum(m, m.operate("exp", x), 1.0))


def _log_sigmoid(m: Any, x: Expression) -> Expression:
    falls = m.operate("exp", m.operate("neg", m.operate("abs", x)))
    return m.operate("-", m.operate("min", x, constant(0.0)), m.operate("log", _real_sum(m, falls, 1.0)))


_unary("neg", lambda m, x: m.operate("neg", x), None)
_unary("abs", lambda m, x: m.operate("abs", x), None)
_unary("exp2", lambda m, x: m.exp2(x))
_unary("expm1", lambda m, x: _real_sum(m, m.operate("exp", x), -1.0))
_unary("log1p", lambda m, x: m.operate("log", m.combine("+", x, constant(1.0), REAL)))
_unary("log2", _times(1 / math.log(2.0)))
_unary("log10", _times(1 / math.log(10.0)))
_unary("rsqrt", lambda m, x: m.power(x, -0.5))
_unary("reciprocal", lambda m, x: m.divide(constant(1.0), x))
_unary("square", lambda m, x: m.power(x, 2), None)
_unary("relu", lambda m, x: select(m.compare("<=", x, constant(0), x.type), constant(
    0 if x.type == INT else 0.0), x), None)
_unary("silu", lambda m, x: m.operate("*", m.real(x), m.operate("sigmoid", x)))
_unary("log_sigmoid_forward", _log_sigmoid)
_unary("floor", lambda m, x: m.floor(x), None)
_unary("ceil", lambda m, x: m.operate("neg", m.floor(m.operate("neg", x))), None)
_unary("trunc", lambda m, x: m.trunc(x), None)
_unary("sign", _sign, None)
_unary("sgn", _sign, None)
_unary("isnan", lambda m, x: constant(False) if x.type == INT else m.operate("!=", x, x))
_unary("isinf", lambda m, x: m.compare("==", m.operate("abs", x), constant(math.inf), REAL))
_unary("isposinf", lambda m, x: m.compare("==", x, constant(math.inf), REAL))
_unary("isneginf", lambda m, x: m.compare("==", x, constant(-math.inf), REAL))
_unary("logical_not", lambda m, x: negated(x), BOOL)


@_rule("softplus")
def _softplus_rule(trace: Any, dtype: torch.dtype, /, x: Any, beta: float = 1.0,
                   threshold: float = 20.0) -> Nodes:
    m = trace.arithmetic

    def soft(a: Expression) -> Expression:
        scaled = m.combine("*", a, constant(float(beta)), REAL)
        curve = m.divide(_softplus(m, scaled), constant(float(beta)))
        return select(m.compare("<", constant(float(threshold)), scaled, REAL), a, curve)

    return each(soft, trace.nodes(x))


@_rule("pow")
def _pow(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
    m, kind = trace.arithmetic, kind_of(dtype)
    exponent, base = _constant_of(trace, y), _constant_of(trace, x)
    if exponent is not None:
        if kind == INT and exponent < 0:
            raise Untraceable("integers to negative powers have no equivalent; expected floats")
        return each(lambda a: m.power(m.convert(a, kind), exponent), trace.nodes(x))
    if base is not None and kind == REAL:
        return each(lambda b: m.power_of(float(base), m.convert(b, REAL)), trace.nodes(y))
    raise Untraceable("a power of two numbers that are not known has no equivalent; expected a constant "
                      "exponent, or a constant float as base")


@_rule("clamp")
def _clamp(trace: Any, dtype: torch.dtype, /, x: Any, min: Any = None, max: Any = None) -> Nodes:  # noqa: A002
    kind = kind_of(dtype)
    limits = [None if limit is None else trace.nodes(limit) for limit in (min, max)]
    given = [limit for limit in limits if limit is not None]

    def clamp(a: Expression, *ends: Expression) -> Expression:
        at = iter(ends)
        low, high = (None if limit is None else next(at) for limit in limits)
        return trace.arithmetic.clamp(a, low, high, kind)

    return each(clamp, trace.nodes(x), *given)


@_rule("clamp_min")
def _clamp_min(trace: Any, dtype: torch.dtype, /, x: Any, low: Any) -> Nodes:
    return _clamp(trace, dtype, x, low)


@_rule("clamp_max")
def _clamp_max(trace: Any, dtype: torch.dtype, /, x: Any, high: Any) -> Nodes:
    return _clamp(trace, dtype, x, None, high)


@_rule("where")
def _where(trace: Any, dtype: torch.dtype, /, condition: Any, x: Any, y: Any) -> Nodes:
    convert, kind = trace.arithmetic.convert, kind_of(dtype)
    return each(lambda c, a, b: select(convert(c, BOOL), convert(a, kind), convert(b, kind)),
                trace.nodes(condition), trace.nodes(x), trace.nodes(y))


@_rule("masked_fill")
def _masked_fill(trace: Any, dtype: torch.dtype, /, x: Any, mask: Any, value: Any) -> Nodes:
    return _where(trace, dtype, mask, value, x)


def _exclusive(x: Expression, y: Expression) -> Expression:
    return select(x, negated(y), y)


_LOGICAL = {"and": both, "or": either, "xor": _exclusive}


def _logical(name: str) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
        convert = trace.arithmetic.convert
        return each(lambda a, b: _LOGICAL[name](convert(a, BOOL), convert(b, BOOL)), trace.nodes(x),
                    trace.nodes(y))

    return rule


def _low_bits(trace: Any, x: Any, y: Any) -> Nodes | None:
    """x & y of integers where y is 2^n - 1."""
    mask = _constant_of(trace, y)
    if mask is None or mask < 0 or (mask + 1) & mask or mask + 1 >= 2**31:
        return None
    return each(lambda a: trace.arithmetic.operate("%", trace.arithmetic.convert(a, INT),
                                                   constant(mask + 1)), trace.nodes(x))


def _bitwise(name: str) -> Rule:
    logical = _logical(name)

    def rule(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
        if dtype == torch.bool:
            return logical(trace, dtype, x, y)
        found = None
        if name == "and":
            found = _low_bits(trace, x, y)
            found = _low_bits(trace, y, x) if found is None else found
        if found is None:
            raise Untraceable(f"bitwise {name} of integers has no equivalent; expected bools, or x & (2**n "
                              "- 1)")
        return found

    return rule


for _name in _LOGICAL:
    RULES[f"logical_{_name}"] = _logical(_name)
    RULES[f"bitwise_{_name}"] = RULES[f"__{_name}__"] = _bitwise(_name)


@_rule("bitwise_not")
def _bitwise_not(trace: Any, dtype: torch.dtype, /, x: Any) -> Nodes:
    if dtype == torch.bool:
        return each(negated, trace.nodes(x))
    m = trace.arithmetic
    return each(lambda a: m.operate("-", m.operate("neg", a), constant(1)), trace.nodes(x))


def _shift(op: str) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any, y: Any) -> Nodes:
        by = _constant_of(trace, y)
        if by is None or not 0 <= by < 31 or kind_of(dtype) != INT:
            raise Untraceable("shifts have an equivalent for constants from 0 to 30 alone")
        return each(lambda a: trace.arithmetic.operate(op, trace.arithmetic.convert(a, INT),
                                                       constant(2**by)), trace.nodes(x))

    return rule


RULES["bitwise_left_shift"] = RULES["__lshift__"] = _shift("*")
RULES["bitwise_right_shift"] = RULES["__rshift__"] = _shift("//")


# Copies, shapes and new tensors

@_rule("clone", "alias", "contiguous", "lift_fresh", "lift", "_unsafe_view")
def _same(trace: Any, dtype: torch.dtype, /, x: Any, *unused: Any, **keywords: Any) -> Nodes:
    return trace.nodes(x)


@_rule("detach")
def _detach(trace: Any, dtype: torch.dtype, /, x: Any) -> Nodes:
    if kind_of(dtype) == REAL and trace.grad_enabled:
        raise Untraceable("detach has no equivalent: gradients flow through the whole of a score function")
    return trace.nodes(x)


@_rule("_to_copy", "to")
def _to_copy(trace: Any, dtype: torch.dtype, /, x: Any, *unused: Any, **keywords: Any) -> Nodes:
    return each(lambda a: trace.arithmetic.convert(a, kind_of(dtype)), trace.nodes(x))


def _reshaping(function: Callable[..., Nodes]) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any, *args: Any, **keywords: Any) -> Nodes:
        return function(trace.nodes(x), *args, **keywords)

    return rule


def _expand(array: Nodes, shape: Any, implicit: bool = False) -> Nodes:
    lead = len(shape) - array.ndim
    full = [array.shape[at - lead] if extent == -1 else extent for at, extent in enumerate(shape)]
    return numpy.broadcast_to(array, full)


for _name, _function in (
        ("view", lambda a, shape: a.reshape(shape)), ("reshape", lambda a, shape: a.reshape(shape)),
        ("unsqueeze", lambda a, dim: numpy.expand_dims(a, dim)), ("expand", _expand),
        ("permute", lambda a, dims: a.transpose(dims)), ("t", lambda a: a.T),
        ("transpose", lambda a, i, j: a.swapaxes(i, j))):
    RULES[_name] = _reshaping(_function)


@_rule("squeeze")
def _squeeze(trace: Any, dtype: torch.dtype, /, x: Any, dim: Any = None) -> Nodes:
    array = trace.nodes(x)
    dims = range(array.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    ones = tuple(d for d in dims if array.shape[d] == 1)
    return array.squeeze(ones)


@_rule("stack", "cat")
def _joined(trace: Any, dtype: torch.dtype, /, tensors: Any, dim: int = 0) -> Nodes:
    convert, kind = trace.arithmetic.convert, kind_of(dtype)
    arrays = [each(lambda a: convert(a, kind), trace.nodes(x)) for x in tensors]
    ndim = trace.out_dim
    if arrays[0].ndim == ndim:
        return numpy.concatenate(arrays, axis=dim)
    return numpy.stack(arrays, axis=dim)


def _filled(value: Callable[..., Any]) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, *args: Any, **keywords: Any) -> Nodes:
        number = value(*args, **keywords)
        kind = kind_of(dtype)
        if isinstance(number, Tensor):
            node = trace.nodes(number)[()]
        else:
            node = constant(number)
        node = trace.arithmetic.convert(node, kind)
        return of_array(trace.out_shape, lambda _: node)

    return rule


for _name, _value in (
        ("zeros_like", lambda x, **k: 0), ("ones_like", lambda x, **k: 1),
        ("full_like", lambda x, value, **k: value), ("new_zeros", lambda x, size, **k: 0),
        ("new_ones", lambda x, size, **k: 1), ("new_full", lambda x, size, value, **k: value),
        ("fill", lambda x, value: value), ("zero", lambda x: 0)):
    RULES[_name] = _filled(_value)


# Elements

def _parts(array: Nodes, dim: int) -> list[Nodes]:
    """What an array holds along a dimension, each an array, too."""
    return [numpy.asarray(part, dtype=object).reshape(numpy.delete(array.shape, dim))
            for part in numpy.moveaxis(array, dim, 0)]


@_rule("unbind")
def _unbind(trace: Any, dtype: torch.dtype, /, x: Any, dim: int = 0) -> list[Tensor]:
    array = trace.nodes(x)
    return [traced(trace, part, dtype, x.device) for part in _parts(array, dim)]


@_rule("select")
def _select(trace: Any, dtype: torch.dtype, /, x: Any, dim: int, index: int) -> Nodes:
    return _parts(trace.nodes(x), dim)[index]


@_rule("slice")
def _slice(trace: Any, dtype: torch.dtype, /, x: Any, dim: int = 0, start: Any = None, end: Any = None,
           step: int = 1) -> Nodes:
    array = trace.nodes(x)
    at: list[Any] = [slice(None)] * array.ndim
    at[dim] = slice(start, end, step)
    return array[tuple(at)]


@_rule("index")
def _index(trace: Any, dtype: torch.dtype, /, x: Any, indices: Any) -> Tensor:
    for index in indices:
        if index is None or index.dim() != 0:
            raise Untraceable("an index must be a single number, and stand for the first dimensions")
    return trace.gather(x, tuple(indices))


@_rule("embedding")
def _embedding(trace: Any, dtype: torch.dtype, /, weight: Any, index: Any, *unused: Any) -> Tensor:
    check_index(index)
    return trace.gather(weight, (index,))


@_rule("index_select")
def _index_select(trace: Any, dtype: torch.dtype, /, x: Any, dim: int, index: Any) -> Tensor:
    if index.numel() != 1:
        raise Untraceable("index_select has an equivalent for a single index alone")
    row = trace.gather(x.movedim(dim, 0), (index.reshape(()),))
    return row.unsqueeze(dim)


@_rule("take")
def _take(trace: Any, dtype: torch.dtype, /, x: Any, index: Any) -> Tensor:
    return trace.gather(x.reshape(-1), (index,))


# Sums and the like, of a few elements

def _reducing(function: Callable[[Any, str, Expression, Expression], Expression],
              start: Callable[[str], Any] | None, reads: str | None = None) -> Rule:
    def rule(trace: Any, dtype: torch.dtype, /, x: Any, dim: Any = None, keepdim: bool = False,
             **unused: Any) -> Nodes:
        array, kind = trace.nodes(x), reads or kind_of(dtype)
        array = each(lambda a: trace.arithmetic.convert(a, kind), array)
        dims = range(array.ndim) if dim is None or dim == [] else (dim,) if isinstance(dim, int) else dim
        for d in sorted((d % max(array.ndim, 1) for d in dims), reverse=True):
            parts = _parts(array, d) if array.ndim else [array]
            if not parts and start is not None:
                fill = constant(start(kind))
                parts = [of_array(array.shape[:d] + array.shape[d + 1:], lambda _: fill)]
            array = functools.reduce(lambda a, b: each(
                lambda m, n: function(trace.arithmetic, kind, m, n), a, b), parts)
            if keepdim:
                array = numpy.expand_dims(array, d)
        return array

    return rule


def _of_kind(zero: int) -> Callable[[str], Any]:
    return lambda kind: zero if kind == INT else float(zero)


RULES["sum"] = _reducing(lambda m, kind, a, b: m.combine("+", a, b, kind), _of_kind(0))
RULES["prod"] = _reducing(lambda m, kind, a, b: m.combine("*", a, b, kind), _of_kind(1))
RULES["amax"] = RULES["max"] = _reducing(lambda m, kind, a, b: m.combine("max", a, b, kind), None)
RULES["amin"] = RULES["min"] = _reducing(lambda m, kind, a, b: m.combine("min", a, b, kind), None)
RULES["any"] = _reducing(lambda m, kind, a, b: either(a, b), lambda kind: False, BOOL)
RULES["all"] = _reducing(lambda m, kind, a, b: both(a, b), lambda kind: True, BOOL)


@_rule("mean")
def _mean(trace: Any, dtype: torch.dtype, /, x: Any, dim: Any = None, keepdim: bool = False,
          **unused: Any) -> Nodes:
    total = RULES["sum"](trace, dtype, x, dim, keepdim)
    count = x.numel() // max(total.size, 1)
    return each(lambda a: trace.arithmetic.divide(a, constant(count)), total)
