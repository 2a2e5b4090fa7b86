"""What has no equivalent but depends on one index alone becomes a table of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..score_functions import BOOL, INT, Expression
from ._function_math import Untraceable
from ._function_values import Traced, leaves

_MAX_ENTRIES = 1 << 20
_INDICES = ("b", "h", "q_idx", "kv_idx")  # whose extents a trace knows

_BINARY: dict[str, Callable[..., Tensor]] = {
    "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div, "//": torch.floor_divide,
    "%": torch.remainder, "<": torch.lt, "<=": torch.le, "==": torch.eq, "!=": torch.ne,
    "&": torch.logical_and, "|": torch.logical_or, "min": torch.minimum, "max": torch.maximum}
_UNARY: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg, "!": torch.logical_not, "abs": torch.abs, "exp": torch.exp, "log": torch.log,
    "sqrt": torch.sqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def variables_of(node: Expression) -> set[str]:
    """The variables that an expression reads."""
    if not node.args:
        return set() if node.op == "constant" else {node.op}
    return set().union(*(variables_of(arg) for arg in node.args))


def _captured_of(node: Expression) -> list[Tensor]:
    found = [node.value.tensor] if node.op == "gather" else []
    for arg in node.args:
        found += _captured_of(arg)
    return found


def evaluate(node: Expression, places: dict[str, Tensor]) -> Tensor:
    """The values of an expression without a score where its variables have those of `places`."""
    if node.op == "constant":
        kinds = {BOOL: torch.bool, INT: torch.int64}
        return torch.tensor(node.value, dtype=kinds.get(node.type, torch.float64))
    if node.op in places:
        return places[node.op]
    args = [evaluate(arg, places) for arg in node.args]
    if node.op == "gather":
        tensor = node.value.tensor
        tensor = tensor.reshape(node.value.shape)
        found = tensor[tuple(torch.broadcast_tensors(*args))]
        return found.to(torch.int64 if node.type == INT else torch.float64)
    if node.op == "where":
        condition, x, y = args
        return torch.where(condition, x, y)
    if node.op == "int":
        return args[0].nan_to_num(0.0).clamp(-2.0**31, 2.0**31 - 1).to(torch.int64)
    return _UNARY[node.op](*args) if len(args) == 1 else _BINARY[node.op](*args)


class _Tables:
    """The one or two variables of a table, and their values, one row after another."""

    def __init__(self, trace: Any, names: list[str]) -> None:
        extents = dict(zip(_INDICES, trace.arithmetic.extents))
        self.shape = tuple(extents[name] for name in names)
        grid = torch.meshgrid(*[torch.arange(extent) for extent in self.shape], indexing="ij")
        self.places = {name: x.reshape(-1) for name, x in zip(names, grid)}


def tabulate(trace: Any, func: Any, args: Any, keywords: Any) -> tuple[Tensor, list[str]] | None:
    """The values of an operator for all values of the indices that its operands depend on, and the names of
    these: one, or b and h. None where it depends on more, on a score or on what gets a gradient."""
    numbers = [x for x in leaves((args, keywords)) if type(x) is Traced]
    try:
        arrays = [x.nodes for x in numbers]
    except Untraceable:  # too many elements
        return None
    nodes = [node for array in arrays for node in array.flat]
    names = sorted(set().union(*(variables_of(node) for node in nodes)))
    if not names or (len(names) > 1 and names != ["b", "h"]) or not set(names) <= set(_INDICES):
        return None
    captured = [x for node in nodes for x in _captured_of(node)]
    captured += [x for x in leaves((args, keywords)) if isinstance(x, Tensor) and type(x) is not Traced]
    if any(x.requires_grad for x in captured):
        return None
    tables = _Tables(trace, names)
    if torch.Size(tables.shape).numel() * len(nodes) > _MAX_ENTRIES:
        return None
    count = iter(range(len(numbers)))

    def with_rows(tree: Any, rows: tuple[Tensor, ...]) -> Any:
        if type(tree) is Traced:
            return rows[next(count)]
        if isinstance(tree, (tuple, list)):
            return type(tree)([with_rows(x, rows) for x in tree])
        if isinstance(tree, dict):
            return {name: with_rows(x, rows) for name, x in tree.items()}
        return tree

    def run(*rows: Tensor) -> Any:
        nonlocal count
        count = iter(range(len(numbers)))
        given = with_rows((args, keywords), rows)
        return func(*given[0], **given[1])

    rows = len(next(iter(tables.places.values())))

    def values_of(x: Traced, array: Any) -> Tensor:
        each = [evaluate(node, tables.places).to(x.dtype).expand(rows) for node in array.flat]
        return torch.stack(each, -1).reshape(rows, *array.shape)

    try:
        made = torch.vmap(run)(*map(values_of, numbers, arrays))
    except Exception:  # it reads the numbers, or has no batching rule
        return None
    if not isinstance(made, Tensor) or (not made.is_floating_point() and made.numel() and
                                        made.abs().max() >= 2**31):
        return None
    table = made.reshape(*tables.shape, *made.shape[1:])
    if all(any(x is known for known in trace.made) for x in captured):
        trace.tables.append(table)
    else:
        trace.repeatable = False
    return table, names
