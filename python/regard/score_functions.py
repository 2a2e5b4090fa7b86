"""Score and mask functions: expressions over a score and its place in the matrix of scores.

    from regard.score_functions import inf, kv_idx, q_idx, score, where

    window = where(q_idx - kv_idx < 128, score, -inf)
    str(window)  # 'where(q_idx-kv_idx<128,score,-inf)', as regard.attention takes it

The variables are score (the scaled score), b (the number of the sequence), h (the query head), q_idx and
kv_idx (the query and the key, counted within their sequence), q_pos (q_idx, moved by the diagonal), q_len
and kv_len (the lengths of the sequence).

Operators are Python's: + - * /, // and % of ints, comparisons, & | ~ of bools, abs(); then where,
minimum, maximum, exp, log, sqrt, tanh, sigmoid and to_int. captured(tensor)[i, j] is an element of a
tensor; r(k)[i, j] and i(k)[i, j] are elements of the k-th captured tensor of a call, of real numbers
or integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["Captured", "Expression", "b", "captured", "exp", "h", "i", "inf", "kv_idx", "kv_len", "log",
           "maximum", "minimum", "q_idx", "q_len", "q_pos", "r", "resolve", "score", "sigmoid", "sqrt",
           "tanh", "to_int", "where"]

BOOL, INT, REAL = "bool", "int", "real"
MAX_CAPTURED, MAX_SIZE, MAX_DEPTH, MAX_TEXT = 8, 256, 64, 4096
_INT_MAX = 2**31 - 1

# How tightly operators bind, loosest first, as C's do.
_OR, _AND, _EQUALITY, _COMPARISON, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(8)
_BINDINGS = {"|": _OR, "&": _AND, "==": _EQUALITY, "!=": _EQUALITY, "<": _COMPARISON,
             "<=": _COMPARISON, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT,
             "%": _PRODUCT, "neg": _UNARY, "!": _UNARY}
_ANY_NUMBERS = frozenset({"+", "-", "*", "min", "max", "neg", "abs"})
_COMPARISONS = frozenset({"<", "<=", "==", "!="})
_REALS = frozenset({"/", "exp", "log", "sqrt", "tanh", "sigmoid"})


class Expression:
    """A value of the language of score and mask functions; str() is its text.

    Made of the variables of regard.score_functions, of Python's numbers and bools, and of operators on
    these. Operands whose types do not fit are a TypeError that shows them.

        >>> from regard.score_functions import h, kv_idx, q_idx, score
        >>> str(score - abs(q_idx - kv_idx) * 0.5 / (h + 1))
        'score-abs(q_idx-kv_idx)*0.5/(h+1)'
        >>> (q_idx >= kv_idx).type
        'bool'

    More: `python -m regard docs score_functions`.
    """

    __slots__ = ("args", "depth", "op", "size", "type", "value")

    def __init__(self, op: str, kind: str, args: tuple[Expression, ...] = (), value: Any = None) -> None:
        self.op = op          # "constant", a variable's name, "gather", an operator or a function
        self.type = kind      # "bool", "int" or "real"
        self.args = args
        self.value = value    # of a constant; of a gather: a slot, or a Captured
        self.size: int = 1 + sum(arg.size for arg in args)
        self.depth: int = 1 + max((arg.depth for arg in args), default=0)

    @property
    def captured(self) -> list[Any]:
        """The tensors that `captured(tensor)` named, in the order of their numbers in str()."""
        return resolve(self)[1]

    def __str__(self) -> str:
        return resolve(self)[0][0]

    def __repr__(self) -> str:
        return f"<{self.type} {_shown(self)}>"

    def __bool__(self) -> bool:
        raise TypeError(f"{_shown(self)} has no truth value: use & | ~ for and, or, not, where() for if, "
                        "minimum() and maximum() for min() and max()")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return apply("==", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return apply("!=", self, other)

    def __lt__(self, other: Any) -> Expression:
        return apply("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return apply("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return apply("<", other, self)

    def __ge__(self, other: Any) -> Expression:
        return apply("<=", other, self)

    def __add__(self, other: Any) -> Expression:
        return apply("+", self, other)

    def __radd__(self, other: Any) -> Expression:
        return apply("+", other, self)

    def __sub__(self, other: Any) -> Expression:
        return apply("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return apply("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return apply("*", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return apply("*", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return apply("/", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return apply("/", other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return apply("//", self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return apply("//", other, self)

    def __mod__(self, other: Any) -> Expression:
        return apply("%", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return apply("%", other, self)

    def __and__(self, other: Any) -> Expression:
        return apply("&", self, other)

    def __rand__(self, other: Any) -> Expression:
        return apply("&", other, self)

    def __or__(self, other: Any) -> Expression:
        return apply("|", self, other)

    def __ror__(self, other: Any) -> Expression:
        return apply("|", other, self)

    def __invert__(self) -> Expression:
        return apply("!", self)

    def __neg__(self) -> Expression:
        return apply("neg", self)

    def __abs__(self) -> Expression:
        return apply("abs", self)


def constant(value: bool | int | float) -> Expression:
    """A number or a bool of Python's as an Expression."""
    if isinstance(value, bool):
        return Expression("constant", BOOL, value=value)
    if isinstance(value, int):
        if abs(value) > _INT_MAX:
            raise ValueError(f"an int ({value}) must be within 32 bits; {float(value)} is a real")
        return Expression("constant", INT, value=value)
    if math.isnan(value):
        raise ValueError("a constant (nan) must be a number")
    return Expression("constant", REAL, value=float(value))


def as_expression(value: Any) -> Expression:
    if isinstance(value, Expression):
        return value
    if isinstance(value, (bool, int, float)):
        return constant(value)
    name = type(value).__name__
    if name.startswith("bool"):  # NumPy's
        return constant(bool(value))
    if hasattr(value, "__index__") and not getattr(value, "shape", ()):
        return constant(value.__index__())
    if hasattr(value, "__float__") and not getattr(value, "shape", ()):
        return constant(float(value))
    raise TypeError(f"an operand ({name}) must be an expression, a number or a bool"
                    + ("; captured(tensor)[...] is an element of a tensor" if hasattr(value, "shape")
                       else ""))


def _mismatch(op: str, needs: str, args: Sequence[Expression]) -> NoReturn:
    kinds = [arg.type for arg in args]
    text = kinds[0] if len(kinds) == 1 else ", ".join(kinds[:-1]) + f" and {kinds[-1]}"
    shown = " and ".join(_shown(arg) for arg in args)
    raise TypeError(f"{'-' if op == 'neg' else '~' if op == '!' else op} needs {needs}, not {text}: {shown}")


def _type_of(op: str, args: Sequence[Expression]) -> str:
    """The type of an operator's result; raises where the operands do not fit."""
    kinds = [arg.type for arg in args]
    if op in ("&", "|", "!"):
        if any(kind != BOOL for kind in kinds):
            _mismatch(op, "bools" if len(kinds) > 1 else "a bool", args)
        return BOOL
    if op == "where":
        if kinds[0] != BOOL or (kinds[1] == BOOL) != (kinds[2] == BOOL):
            _mismatch(op, "a bool and two numbers or two bools", args)
        return kinds[1] if kinds[1] == kinds[2] else REAL
    if op in ("//", "%"):
        if any(kind != INT for kind in kinds):
            _mismatch(op, "ints", args)
        return INT
    if BOOL in kinds:
        _mismatch(op, "numbers" if len(kinds) > 1 else "a number", args)
    if op in _COMPARISONS:
        return BOOL
    if op == "int":
        return INT
    return kinds[0] if op in _ANY_NUMBERS and kinds[0] == kinds[-1] else REAL


def apply(op: str, *operands: Any) -> Expression:
    """An operator or a function of the language, by its name in the text ("neg": the unary minus)."""
    args = tuple(as_expression(operand) for operand in operands)
    kind = _type_of(op, args)
    if op == "neg" and args[0].op == "constant":
        return constant(-args[0].value)
    return Expression(op, kind, args)


class Captured:
    """A tensor that expressions read: captured(x)[i, j] is an element, a real number or an int.

    Slot numbers of a call are given out by resolve().
    """

    __slots__ = ("ndim", "shape", "slot", "tensor", "type")

    def __init__(self, tensor: Any, kind: str, shape: tuple[int, ...] | None, slot: int | None = None) -> None:
        self.tensor, self.type, self.slot = tensor, kind, slot
        self.shape = shape  # None: not known here
        self.ndim = None if shape is None else len(shape)

    def __getitem__(self, index: Any) -> Expression:
        indices = tuple(as_expression(x) for x in (index if isinstance(index, tuple) else (index,)))
        if self.ndim is None and not 1 <= len(indices) <= 4:
            raise TypeError(f"a captured tensor has 1 to 4 indices, not {len(indices)}")
        if self.ndim is not None and len(indices) != self.ndim:
            raise TypeError(f"a captured tensor of shape {self.shape} needs {self.ndim} indices, not "
                            f"{len(indices)}")
        for at in indices:
            if at.type != INT:
                raise TypeError(f"an index must be an int, not {at.type}: {_shown(at)}")
        return Expression("gather", self.type, indices, self)


def _kind_of(tensor: Any) -> str:
    name = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    if name.startswith(("float", "bfloat")):
        return REAL
    if name.startswith(("int", "uint", "bool")):
        return INT
    raise TypeError(f"a captured tensor ({type(tensor).__name__}) must be an array or a tensor of floats, "
                    "ints or bools")


def captured(tensor: Any) -> Captured:
    """A tensor of 1 to 4 dimensions as part of an expression.

    Reals are f32, f64, bf16 or f16; integers i32, i64, bool or u8. Indices must lie within the tensor.

        >>> import numpy
        >>> from regard.score_functions import captured, h, kv_idx, q_idx, score
        >>> slopes = numpy.float32([0.5, 0.25])
        >>> function = score + captured(slopes)[h] * (kv_idx - q_idx)
        >>> str(function), len(function.captured)
        ('score+r0[h]*(kv_idx-q_idx)', 1)

    More: `python -m regard docs score_functions`.
    """
    kind = _kind_of(tensor)
    shape = tuple(tensor.shape)
    if not 1 <= len(shape) <= 4:
        raise TypeError(f"a captured tensor (of shape {shape}) must have 1 to 4 dimensions")
    return Captured(tensor, kind, shape)


def _slot(kind: str, slot: int) -> Captured:
    if not isinstance(slot, int) or not 0 <= slot < MAX_CAPTURED:
        raise ValueError(f"the number of a captured tensor ({slot!r}) must be 0 to {MAX_CAPTURED - 1}")
    return Captured(None, kind, None, slot)


def r(slot: int) -> Captured:
    """The captured tensor of that number, of real numbers: r(0)[h] is "r0[h]"."""
    return _slot(REAL, slot)


def i(slot: int) -> Captured:
    """The captured tensor of that number, of integers: i(0)[kv_idx] is "i0[kv_idx]"."""
    return _slot(INT, slot)


def where(condition: Any, x: Any, y: Any) -> Expression:
    """x where the condition holds, else y: two numbers, or two bools."""
    return apply("where", condition, x, y)


def minimum(x: Any, y: Any) -> Expression:
    return apply("min", x, y)


def maximum(x: Any, y: Any) -> Expression:
    return apply("max", x, y)


def exp(x: Any) -> Expression:
    return apply("exp", x)


def log(x: Any) -> Expression:
    return apply("log", x)


def sqrt(x: Any) -> Expression:
    return apply("sqrt", x)


def tanh(x: Any) -> Expression:
    return apply("tanh", x)


def sigmoid(x: Any) -> Expression:
    return apply("sigmoid", x)


def to_int(x: Any) -> Expression:
    """Towards 0, within 32 bits; 0 of a NaN."""
    return apply("int", x)


score = Expression("score", REAL)
b = Expression("b", INT)
h = Expression("h", INT)
q_idx = Expression("q_idx", INT)
kv_idx = Expression("kv_idx", INT)
q_pos = Expression("q_pos", INT)
q_len = Expression("q_len", INT)
kv_len = Expression("kv_len", INT)
inf = constant(math.inf)


def _constant_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _binding(node: Expression) -> int:
    if node.op == "constant":
        negative = node.type != BOOL and math.copysign(1.0, node.value) < 0
        return _UNARY if negative else _PRIMARY
    return _BINDINGS.get(node.op, _PRIMARY)


class _Slots:
    """The numbers of captured tensors, in the order in which they appear."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self._of_id: dict[int, int] = {}
        self._explicit = False

    def of(self, given: Captured) -> int:
        self._explicit = self._explicit or given.slot is not None
        if self._explicit and (given.slot is None or self.tensors):
            raise ValueError("captured(tensor) and r(k), i(k) are not of one call: one of them numbers the "
                             "captured tensors")
        if given.slot is not None:
            return given.slot
        key = id(given.tensor)
        if key not in self._of_id:
            self._of_id[key] = len(self.tensors)
            self.tensors.append(given.tensor)
        return self._of_id[key]


def _append(node: Expression, at_least: int, slots: _Slots, out: list[str]) -> None:
    binding = _binding(node)
    if binding < at_least:
        out.append("(")
    if node.op == "constant":
        out.append(_constant_text(node.value))
    elif node.op == "gather":
        out.append(f"{'i' if node.type == INT else 'r'}{slots.of(node.value)}[")
        _append_list(node.args, slots, out)
        out.append("]")
    elif not node.args:
        out.append(node.op)
    elif binding == _PRIMARY:
        out.append(node.op + "(")
        _append_list(node.args, slots, out)
        out.append(")")
    elif binding == _UNARY:
        out.append("-" if node.op == "neg" else "!")
        _append(node.args[0], _UNARY, slots, out)
    else:
        _append(node.args[0], binding, slots, out)
        out.append(node.op)
        _append(node.args[1], binding + 1, slots, out)
    if binding < at_least:
        out.append(")")


def _append_list(nodes: Sequence[Expression], slots: _Slots, out: list[str]) -> None:
    for at, node in enumerate(nodes):
        if at:
            out.append(",")
        _append(node, _OR, slots, out)


def _shown(node: Expression) -> str:
    """The text for messages, which may be cut short; every captured tensor is counted from 0."""
    if node.size > MAX_SIZE:
        return f"an expression of {node.size} operators and operands"
    out: list[str] = []
    _append(node, _OR, _Slots(), out)
    text = "".join(out)
    return text if len(text) <= 80 else text[:77] + "..."


def check_size(node: Expression) -> None:
    """Raises where an expression has more operators than the language allows."""
    if node.size > MAX_SIZE:
        raise ValueError(f"an expression has at most {MAX_SIZE} operators and operands, not {node.size}")
    if node.depth > MAX_DEPTH:
        raise ValueError(f"operators of an expression may stand at most {MAX_DEPTH} deep, not {node.depth}")


def resolve(*expressions: Expression) -> tuple[list[str], list[Any]]:
    """The texts of expressions of one call, and the tensors that they read, in the order of their
    numbers.

        >>> import numpy
        >>> from regard.score_functions import captured, h, kv_idx, q_idx, resolve, score
        >>> slopes, documents = numpy.float32([0.5, 0.25]), numpy.int32([0, 0, 1])
        >>> ids = captured(documents)
        >>> texts, tensors = resolve(score * captured(slopes)[h], ids[q_idx] == ids[kv_idx])
        >>> texts
        ['score*r0[h]', 'i1[q_idx]==i1[kv_idx]']

    Raises ValueError where an expression is too long, or the tensors are too many.
    """
    slots = _Slots()
    texts = []
    for node in expressions:
        check_size(node)
        out: list[str] = []
        _append(node, _OR, slots, out)
        texts.append("".join(out))
        if len(texts[-1]) > MAX_TEXT:
            raise ValueError(f"an expression has at most {MAX_TEXT} characters, not {len(texts[-1])}")
    if len(slots.tensors) > MAX_CAPTURED:
        raise ValueError(f"expressions of a call read at most {MAX_CAPTURED} tensors, not "
                         f"{len(slots.tensors)}")
    return texts, slots.tensors


def _of_a_call(score: Any, mask: Any, given: Sequence[Any] | None) -> tuple[str | None, str | None, Any]:
    """The texts of a call's functions, of which one is an Expression, and their captured tensors."""
    expressions = [x for x in (score, mask) if x is not None]
    for x in expressions:
        if not isinstance(x, Expression):
            raise TypeError(f"score_function and mask_function ({type(score).__name__} and "
                            f"{type(mask).__name__}) must both be expressions of regard.score_functions, or texts")
    texts, tensors = resolve(*expressions)
    if tensors and given is not None:
        raise ValueError("captured must be left out where expressions name their tensors: captured(tensor)")
    return (texts[0] if score is not None else None, texts[-1] if mask is not None else None,
            tensors if given is None else given)
