"""How fast each backend, and PyTorch, computes a call."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _core
from ._benchmark_torch import torch_rows


@dataclass(frozen=True)
class BenchmarkRow:
    """One backend in one direction. Times are seconds of a call; None where it was not measured,
    for which `reason` states why. `variant` is "default"; `regard bench --variants` measures others.
    """

    name: str
    direction: str
    reason: str | None
    kernel: str | None
    workers: int | None
    workspace_bytes: int | None
    variant: str
    operations: float
    bytes: float
    runs: int
    seconds: float | None
    min_seconds: float | None
    first_quartile_seconds: float | None
    third_quartile_seconds: float | None
    max_seconds: float | None
    gflops: float | None
    peak_share: float | None
    gbps: float | None
    memory_share: float | None


class Benchmark:
    """What regard.benchmark measured. str() is the table, `rows` has its figures."""

    def __init__(self, text: str, document: str) -> None:
        self._text = text
        self._document = document

    def to_dict(self) -> dict[str, Any]:
        """The case, the machine's rates, the rows and the notes, as `regard bench --json` has them."""
        data: dict[str, Any] = json.loads(self._document)
        return data

    @property
    def rows(self) -> tuple[BenchmarkRow, ...]:
        """Forward, then backward, each in the order of preference; PyTorch last."""
        return tuple(BenchmarkRow(**row) for row in self.to_dict()["rows"])

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self.to_dict()["notes"])

    def __str__(self) -> str:
        return self._text.rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def benchmark(q: Any, k: Any, v: Any, *, seconds: float = 1.0, rounds: int | None = None,
              **options: Any) -> Benchmark:
    """Measures attention(q, k, v, **options) on every backend that can run it, and PyTorch's
    scaled_dot_product_attention where PyTorch is installed and the call means the same there.

    q, k, v and options are those of regard.attention. Each is called as a program calls it, in
    turns, for `seconds` and at least three rounds, or for `rounds`. Before a turn the threads of
    the one before, which may spin, are waited for. With return_saved=True the backward is measured,
    too. A backend that cannot run, and PyTorch where it is not comparable, have a row with the
    reason. Returns a regard.Benchmark: print it for the table, or read `rows`, in seconds.

        >>> import numpy as np, regard
        >>> q = k = v = np.ones((1, 2, 64, 64), np.float32)
        >>> result = regard.benchmark(q, k, v, is_causal=True, seconds=0.01)
        >>> [row.name for row in result.rows if row.seconds is not None and row.name != "torch"]
        ['flash', 'efficient', 'math']

    Raises ValueError for `seconds` and `rounds` out of range, and what regard.attention raises.

    More: `python -m regard docs python`.
    """
    if not seconds > 0:
        raise ValueError(f"seconds ({seconds!r}) must be above 0")
    if rounds is not None and rounds < 1:
        raise ValueError(f"rounds ({rounds!r}) must be at least 1, or None")
    planned = _core.plan_benchmark(q, k, v, **options)
    calls = [_call(name, backward, q, k, v, options) if not reason else None
             for name, backward, reason in planned.rows()]
    for row in torch_rows(q, k, v, options):
        planned.add_row(row.name, row.backward, row.reason, row.kernel, row.workers)
        # Where add_row puts it: after the last row of its direction.
        calls.insert(len(calls) if row.backward else _forward_rows(planned) - 1, row.call)
    planned.measure(calls, seconds, rounds or 0)
    return Benchmark(planned.text(), planned.json())


def _forward_rows(planned: _core.Measurement) -> int:
    return sum(not backward for _, backward, _ in planned.rows())


def _call(name: str, backward: bool, q: Any, k: Any, v: Any,
          options: dict[str, Any]) -> Callable[[], Any]:
    """A call of attention, or of attention_backward, on one backend alone."""
    options = {key: value for key, value in options.items() if key not in ("backends", "policy")} | {
        "policy": _narrowed(options.get("policy"), name)}
    if not backward:
        return lambda: _core.attention(q, k, v, **options)
    *results, saved = _core.attention(q, k, v, **options)
    out = results[0]
    gradient_options = {key: value for key, value in options.items()
                        if not key.startswith(("return_", "descale_")) and key != "out"}
    gradient_options.pop("policy")  # `saved` decides
    return lambda: _core.attention_backward(out, q, k, v, out, saved, **gradient_options)


def _narrowed(policy: _core.Policy | None, name: str) -> _core.Policy:
    fields = policy.to_dict() if policy is not None else {}
    return _core.Policy(**(fields | {"only": [name], "prefer": None}))
