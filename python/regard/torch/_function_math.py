"""PyTorch's arithmetic on single numbers, in the language of score functions.

Operands are Expressions. `Arithmetic` knows how far the indices of a call reach, so that it knows which
integers stay within 32 bits, which indices are negative, and where an int is as good as a float.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..score_functions import BOOL, INT, REAL, Captured, Expression, apply, constant

_INT32 = (-(2.0**31), 2.0**31 - 1)
_FLOAT32_INTS = 2.0**24  # ints up to here are floats
_SMALL_INTS = {torch.uint8: (0, 256), torch.int8: (128, 256), torch.int16: (2**15, 2**16)}
_LN2 = math.log(2.0)
_MAX_POWER = 16


class Untraceable(Exception):
    """What the language cannot express; the tracer adds the line."""


class Extents(NamedTuple):
    """How many sequences, query heads, queries and keys a call has."""

    batch: int
    heads: int
    queries: int
    keys: int


_VARIABLES = {"b": 0, "h": 1, "q_idx": 2, "kv_idx": 3}
_Interval = tuple[float, float]
_EVERYTHING: _Interval = (-math.inf, math.inf)


def kind_of(dtype: torch.dtype) -> str:
    """The type of the language that holds numbers of a dtype."""
    if dtype == torch.bool:
        return BOOL
    if dtype.is_complex:
        raise Untraceable(f"{dtype} has no equivalent")
    return REAL if dtype.is_floating_point else INT


def is_constant(node: Expression) -> bool:
    return node.op == "constant"


_FOLDED: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, "<=": operator.le,
    "==": operator.eq, "!=": operator.ne, "&": operator.and_, "|": operator.or_, "!": operator.not_,
    "abs": abs, "min": lambda x, y: x if x < y else y, "max": lambda x, y: x if x > y else y,
    "//": lambda x, y: x // y if y else 0, "%": lambda x, y: x % y if y else 0}
_FOLDED_REALS: dict[str, Callable[..., float]] = {
    "/": operator.truediv, "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "tanh": math.tanh}


def _folded(op: str, args: tuple[Expression, ...]) -> Expression | None:
    """The constant that an operator on constants is."""
    values = [arg.value for arg in args]
    try:
        if op in _FOLDED_REALS:
            value: Any = float(_FOLDED_REALS[op](*values))
        elif op in _FOLDED:
            value = _FOLDED[op](*values)
            if any(arg.type == REAL for arg in args) and not isinstance(value, bool):
                value = float(value)
        else:
            return None
        return constant(value)
    except (ArithmeticError, ValueError):  # infinities and NaN, which arithmetic at the call gives
        return None


def _same(x: Expression, y: Expression) -> bool:
    if x is y:
        return True
    return (x.op == y.op and x.type == y.type and len(x.args) == len(y.args) and
            (x.value is y.value if x.op == "gather" else x.value == y.value) and
            all(_same(a, b) for a, b in zip(x.args, y.args)))


def both(x: Expression, y: Expression) -> Expression:
    for a, b in ((x, y), (y, x)):
        if is_constant(a):
            return b if a.value else a
    return apply("&", x, y)


def either(x: Expression, y: Expression) -> Expression:
    for a, b in ((x, y), (y, x)):
        if is_constant(a):
            return a if a.value else b
    return apply("|", x, y)


def negated(x: Expression) -> Expression:
    if is_constant(x):
        return constant(not x.value)
    if x.op == "!":
        return x.args[0]
    ints = x.args and all(arg.type == INT for arg in x.args)
    if x.op == "==" or x.op == "!=":
        return apply("!=" if x.op == "==" else "==", *x.args)
    if x.op in ("<", "<=") and ints:  # of reals a NaN makes both false
        return apply("<=" if x.op == "<" else "<", x.args[1], x.args[0])
    return apply("!", x)


def select(condition: Expression, x: Expression, y: Expression) -> Expression:
    if is_constant(condition):
        return x if condition.value else y
    if _same(x, y):
        return x
    if x.type == BOOL:
        if is_constant(x):
            return either(condition, y) if x.value else both(negated(condition), y)
        if is_constant(y):
            return either(negated(condition), x) if y.value else both(condition, x)
    return apply("where", condition, x, y)


class Arithmetic:
    """The operations of a trace; `extents` bounds the indices."""

    def __init__(self, extents: Extents) -> None:
        self.extents = extents
        self._intervals: dict[int, tuple[Expression, _Interval]] = {}  # by id; keeps the nodes
        self.ranges: dict[int, Tensor] = {}         # captured integers that were looked at, by id
        self._ends: dict[int, _Interval] = {}       # what they are

    # What integers can be

    def interval(self, node: Expression) -> _Interval:
        known = self._intervals.get(id(node))
        if known is None:
            known = self._intervals[id(node)] = (node, self._interval(node))
        return known[1]

    def _interval(self, node: Expression) -> _Interval:
        if is_constant(node):
            return (float(node.value), float(node.value))
        if node.op in _VARIABLES:
            return (0.0, max(float(self.extents[_VARIABLES[node.op]]) - 1.0, 0.0))
        if node.op == "q_pos":  # of the last query at the last key
            queries, keys = self.extents.queries, self.extents.keys
            return (float(keys - queries), float(keys - 1))
        if node.op == "gather":
            return self._range(node.value)
        if node.op == "where":
            (a, b), (c, d) = (self.interval(arg) for arg in node.args[1:])
            return (min(a, c), max(b, d))
        return _bounds(node.op, [self.interval(arg) for arg in node.args])

    def _range(self, given: Captured) -> _Interval:
        tensor = given.tensor
        if given.type == REAL or not isinstance(tensor, Tensor):
            return _EVERYTHING
        if tensor.dtype == torch.bool:
            return (0.0, 1.0)
        return self.range_of(tensor)

    def range_of(self, tensor: Tensor) -> _Interval:
        """The least and the greatest of captured integers."""
        if id(tensor) not in self._ends:
            self.ranges[id(tensor)] = tensor
            ends = (0.0, 0.0)
            if tensor.numel():
                low, high = torch.aminmax(tensor.detach())
                ends = (float(low), float(high))
            self._ends[id(tensor)] = ends
        return self._ends[id(tensor)]

    # Conversions

    def convert(self, node: Expression, kind: str) -> Expression:
        """The number as `kind`; an int serves as a real, which it becomes where one stands beside it."""
        if node.type == BOOL and kind != BOOL:
            one: Any = 1 if kind == INT else 1.0
            return select(node, constant(one), constant(one * 0))
        if kind == BOOL and node.type != BOOL:
            return self.compare("!=", node, constant(0), INT if node.type == INT else REAL)
        if kind == INT and node.type == REAL:
            return self.truncated(node)
        return node

    def truncated(self, node: Expression) -> Expression:
        if is_constant(node) and math.isfinite(node.value) and abs(node.value) < 2.0**31:
            return constant(int(node.value))
        if node.op == "+" and is_constant(node.args[1]) and node.args[1].value == 0.0 and (
                node.args[0].type == INT):
            return node.args[0]
        return apply("int", node)

    def real(self, node: Expression) -> Expression:
        """A node whose type is real."""
        if node.type == REAL:
            return node
        if is_constant(node):
            return constant(float(node.value))
        return apply("+", node, constant(0.0))

    def wrapped(self, node: Expression, dtype: torch.dtype) -> Expression:
        """The number as integers of a dtype hold it."""
        if node.type != INT or dtype == torch.int32 or kind_of(dtype) != INT:
            return node
        low, high = self.interval(node)
        if dtype in _SMALL_INTS:
            below, size = _SMALL_INTS[dtype]
            if -below <= low and high < size - below:
                return node
            moved = self.operate("%", self.operate("+", node, constant(below)), constant(size))
            return self.operate("-", moved, constant(below))
        if low < _INT32[0] or high > _INT32[1]:
            raise Untraceable(f"integers from {low:.0f} to {high:.0f} may not fit into 32 bits, which "
                              "score functions compute in; expected smaller ones, or floats")
        return node

    # Operators

    def operate(self, op: str, *args: Expression) -> Expression:
        """An operator of the language, of constants a constant."""
        if all(is_constant(arg) for arg in args):
            folded = _folded(op, args)
            if folded is not None:
                return folded
        if len(args) == 2 and args[0].type == args[1].type == INT:
            x, y = args
            if is_constant(y) and ((y.value == 0 and op in "+-") or (y.value == 1 and op in ("*", "//"))):
                return x
            if is_constant(x) and ((x.value == 0 and op == "+") or (x.value == 1 and op == "*")):
                return y
            if is_constant(y) and op == "%" and 0.0 <= self.interval(x)[0] and (
                    self.interval(x)[1] < y.value):
                return x
        if len(args) == 2 and REAL in (args[0].type, args[1].type):
            x, y = args
            if x.type == REAL and is_constant(y) and (
                    (y.value == 1 and op in ("*", "/")) or (y.value == 0 and op == "-")):
                return x
            if y.type == REAL and is_constant(x) and x.value == 1 and op == "*":
                return y
        if op == "neg" and args[0].op == "neg":
            return args[0].args[0]
        return apply(op, *args)

    def combine(self, op: str, x: Expression, y: Expression, kind: str) -> Expression:
        """+, -, *, min or max of two numbers of that kind."""
        x, y = self.convert(x, kind), self.convert(y, kind)
        if kind == REAL and x.type == y.type == INT and op in "+-*":
            # Ints are the same numbers as long as floats hold them.
            low, high = _bounds(op, [self.interval(x), self.interval(y)])
            if low < -_FLOAT32_INTS or high > _FLOAT32_INTS:
                x = self.real(x)
        return self.operate(op, x, y)

    def compare(self, op: str, x: Expression, y: Expression, kind: str) -> Expression:
        """<, <=, ==, != of two numbers or bools; kind: what both are compared as."""
        if kind == BOOL:
            if op in ("==", "!="):
                x, y = self.convert(x, BOOL), self.convert(y, BOOL)
                return select(x, *((y, negated(y)) if op == "==" else (negated(y), y)))
            kind = INT
        x, y = self.convert(x, kind), self.convert(y, kind)
        if x.type == y.type == INT:
            (a, b), (c, d) = self.interval(x), self.interval(y)
            if op == "<" and (b < c or a >= d):
                return constant(b < c)
            if op == "<=" and (b <= c or a > d):
                return constant(b <= c)
        return self.operate(op, x, y)

    def divide(self, x: Expression, y: Expression) -> Expression:
        return self.operate("/", self.convert(x, REAL), self.convert(y, REAL))

    def floor_divide(self, x: Expression, y: Expression, kind: str) -> Expression:
        if kind == REAL:
            return self.floor(self.divide(x, y))
        return self.operate("//", self.convert(x, INT), self._divisor(y))

    def remainder(self, x: Expression, y: Expression, kind: str) -> Expression:
        if kind == REAL:
            if not (x.type == y.type == INT):
                raise Untraceable("% of floats has no equivalent; expected integers")
        return self.operate("%", self.convert(x, INT), self._divisor(y))

    def truncate_divide(self, x: Expression, y: Expression, kind: str) -> Expression:
        if kind == REAL:
            return self.trunc(self.divide(x, y))
        x, y = self.convert(x, INT), self._divisor(y)
        if self.interval(y)[0] <= 0.0:
            raise Untraceable("division towards 0 needs a divisor above 0")
        if self.interval(x)[0] >= 0.0:
            return self.operate("//", x, y)
        negative = apply("neg", self.operate("//", self.operate("neg", x), y))
        return select(self.compare("<", x, constant(0), INT), negative, self.operate("//", x, y))

    def _divisor(self, y: Expression) -> Expression:
        y = self.convert(y, INT)
        if is_constant(y) and y.value == 0:
            raise Untraceable("a division of integers by 0")
        return y

    def floor(self, x: Expression) -> Expression:
        if x.type == INT:
            return x
        if x.op == "/" and all(arg.type == INT for arg in x.args) and all(
                -_FLOAT32_INTS < low and high < _FLOAT32_INTS
                for low, high in map(self.interval, x.args)) and self.interval(x.args[1])[0] > 0.0:
            return apply("//", *x.args)  # the same: a quotient of such ints never rounds up to an int
        cut = apply("int", x)
        down = select(apply("<", x, cut), apply("-", cut, constant(1)), cut)
        return self._where_not_whole(x, down)

    def trunc(self, x: Expression) -> Expression:
        return x if x.type == INT else self._where_not_whole(x, apply("int", x))

    def _where_not_whole(self, x: Expression, rounded: Expression) -> Expression:
        """Floats of 2^23 and more are whole, and may not fit into an int."""
        return apply("where", apply("<", apply("abs", x), constant(2.0**23)), rounded, x)

    def power(self, x: Expression, exponent: float) -> Expression:
        if exponent == 0:
            return constant(1 if x.type == INT else 1.0)
        if exponent in (0.5, -0.5):
            root = self.operate("sqrt", x)
            return root if exponent > 0 else self.operate("/", constant(1.0), root)
        if float(exponent).is_integer() and abs(exponent) <= _MAX_POWER:
            product = x
            for _ in range(int(abs(exponent)) - 1):
                product = self.combine("*", product, x, x.type)
            return product if exponent > 0 else self.operate("/", constant(1.0), self.real(product))
        if float(exponent).is_integer():
            raise Untraceable(f"a power of {exponent} has no equivalent; expected at most {_MAX_POWER}")
        grown = self.operate("exp", self.operate("*", self.operate("log", self.real(x)),
                                                 constant(float(exponent))))
        return select(self.compare("==", x, constant(0), x.type),
                      constant(0.0 if exponent > 0 else math.inf), grown)

    def power_of(self, base: float, x: Expression) -> Expression:
        """base ** x, a real."""
        if base <= 0.0:
            raise Untraceable(f"a power of {base} has no equivalent; expected a base above 0")
        return self.operate("exp", self.combine("*", x, constant(math.log(base)), REAL))

    def exp2(self, x: Expression) -> Expression:
        return self.operate("exp", self.combine("*", x, constant(_LN2), REAL))

    def clamp(self, x: Expression, low: Expression | None, high: Expression | None,
              kind: str) -> Expression:
        """clamp: its gradient is whole at the ends, where that of min and max is half."""
        x = self.convert(x, kind)
        if kind == INT:
            x = x if low is None else self.operate("max", x, self.convert(low, kind))
            return x if high is None else self.operate("min", x, self.convert(high, kind))
        if high is not None:
            limit = self.convert(high, kind)
            clamped = select(self.compare("<", limit, x, kind), limit, x)
        else:
            clamped = x
        if low is None:
            return clamped
        limit = self.convert(low, kind)
        below = select(self.compare("<", x, limit, kind), limit, clamped)
        if high is None or (is_constant(limit) and is_constant(high) and limit.value <= high.value):
            return below
        limit = self.convert(high, kind)  # PyTorch's result where low is above high
        return select(self.compare("<", limit, below, kind), limit, below)

    def index(self, node: Expression, extent: int) -> Expression:
        """An index as PyTorch counts it: those below 0 from the end."""
        low, high = self.interval(node)
        if low >= 0.0 or extent == 0:
            return node
        if high < 0.0:
            return self.operate("+", node, constant(extent))
        if low < -extent or high >= extent:
            raise Untraceable(f"an index from {low:.0f} to {high:.0f} may lie outside of a dimension of "
                              f"{extent}; expected one that is clamped")
        return self.operate("%", node, constant(extent))


def _bounds(op: str, ends: list[_Interval]) -> _Interval:
    """What an operator's result can be, from its operands' intervals."""
    if op in ("&", "|", "!", "<", "<=", "==", "!="):
        return (0.0, 1.0)
    a, b = ends[0]
    if op == "neg":
        return (-b, -a)
    if op == "abs":
        return (0.0 if a <= 0.0 <= b else min(abs(a), abs(b)), max(abs(a), abs(b)))
    if op == "int":
        return (max(math.trunc(a), _INT32[0]) if a > -math.inf else _INT32[0],
                min(math.trunc(b), _INT32[1]) if b < math.inf else _INT32[1])
    if len(ends) == 1:
        return {"exp": (0.0, math.inf), "sqrt": (0.0, math.inf), "tanh": (-1.0, 1.0),
                "sigmoid": (0.0, 1.0)}.get(op, _EVERYTHING)
    c, d = ends[1]
    if op == "+":
        return (a + c, b + d)
    if op == "-":
        return (a - d, b - c)
    if op == "min":
        return (min(a, c), min(b, d))
    if op == "max":
        return (max(a, c), max(b, d))
    if op == "*":
        corners = [0.0 if 0.0 in (x, y) else x * y for x in (a, b) for y in (c, d)]
        return (min(corners), max(corners))
    if op == "//" and c > 0.0:
        corners = [math.floor(x / y) if math.isfinite(x) else x for x in (a, b) for y in (c, d)]
        return (min(corners), max(corners))
    if op == "%" and c > 0.0:
        return (0.0, min(b, d - 1.0) if a >= 0.0 else d - 1.0)
    if op == "//":
        return (-max(abs(a), abs(b)), max(abs(a), abs(b)))
    if op == "%":
        return (-max(abs(c), abs(d)), max(abs(c), abs(d)))
    return _EVERYTHING
