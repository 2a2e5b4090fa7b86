"""What ran: every call of regard in a block of code, with its layer, backend, time and cost."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from . import _core

_lock = threading.Lock()
_open: list["trace"] = []
_names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of modules, while a trace is open


def _name_modules(root: Any) -> None:
    for name, module in root.named_modules():
        _names.setdefault(module, name or type(module).__name__)


def current_layer() -> str:
    """The innermost torch module whose forward is on this thread's stack and that is a part of the
    outermost one, by its name there; "" without any. Read from the stack: hooks would slow every
    module of a model, and have torch.compile compile it again.
    """
    torch_modules = sys.modules.get("torch.nn.modules.module")
    if torch_modules is None:
        return ""
    code = torch_modules.Module._call_impl.__code__
    root = None
    modules = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is code:
            root = frame.f_locals["self"]
            root = getattr(root, "_orig_mod", root)  # what torch.compile has wrapped
            if root in _names:
                return _names[root]
            modules.append(root)
        frame = frame.f_back
    if root is None:
        return ""
    _name_modules(root)
    return next(_names[module] for module in modules if module in _names)


class _Group(NamedTuple):
    """What calls of one row of the summary have in common."""

    layer: str
    case: str
    direction: str
    backend: str
    kernel: str


class RankActivity(NamedTuple):
    """What this rank did for a while in a call of `regard.torch.context_parallel`."""

    direction: str
    rank: int
    step: str  # "2 of p2p"
    kind: str  # "computing", or "waiting" for messages
    begin: float  # seconds since the call began
    end: float


@contextlib.contextmanager
def recorded_activities(direction: str, rank: int) -> Iterator[list[tuple[str, str, float, float]] | None]:
    """A list for the activities of a call, which the open traces then receive; None where none is open."""
    with _lock:
        receivers = list(_open)
    if not receivers:
        yield None
        return
    activities: list[tuple[str, str, float, float]] = []
    yield activities
    made = [RankActivity(direction, rank, *activity) for activity in activities]
    for receiver in receivers:
        receiver.rank_activities.extend(made)


class Calibration(NamedTuple):
    """The calls of one case, backend and direction: predicted and measured."""

    case: str
    backend: str
    direction: str
    calls: int
    measured_seconds: float  # the median
    predicted_seconds: float
    spread: float  # nine of ten calls are expected within this factor of the prediction
    ratio: float  # measured over predicted


def _group_of(call: _core.TracedCall) -> _Group:
    return _Group(call.layer or "", call.case or "?", call.direction, call.backend or "none",
                  call.kernel or "")


def _time_text(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _share_text(calls: list[_core.TracedCall], share: str) -> str:
    """The share of a rate of all calls together; "-" where that of one is unknown."""
    shares = [getattr(call, share) for call in calls]
    if None in shares:
        return "-"
    seconds = sum(call.seconds for call in calls)
    return f"{100 * sum(s * c.seconds for s, c in zip(shares, calls)) / seconds:.1f} %"


def _table(rows: list[list[str]], right: set[int]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text.rjust(width) if i in right else text.ljust(width)
                 for i, (text, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


class trace:  # noqa: N801 - used as a function
    """Records every call of regard in the block, of all threads of the process.

        >>> import numpy as np, regard
        >>> q = k = v = np.ones((1, 2, 64, 64), np.float32)
        >>> with regard.trace() as t:
        ...     out = regard.attention(q, k, v)
        >>> [(call.backend, call.direction) for call in t.records]
        [('flash', 'forward')]

    `summary()` is a table by layer and case, `to_json()` has every call, `plot()` draws bars.
    `rank_activities` has what this rank did in calls of regard.torch.context_parallel, and when: it
    computed, or waited for messages. Messages of a ring are hidden where it did not wait.

    Calls inside models, of torch's operators and of autograd's threads are recorded, too. A call's
    layer is the torch module that made it, by its name in the outermost module that was called, or
    in `model` where that is given. Traces nest: each records what is called while it is open. A
    forked child begins without one.

    Raises RuntimeError where the same trace is entered twice.

    More: `python -m regard docs python`.
    """

    def __init__(self, model: Any = None) -> None:
        self._model = model
        self._recording = _core.Recording()
        self.rank_activities: list[RankActivity] = []

    def __enter__(self) -> trace:
        with _lock:
            if self in _open:
                raise RuntimeError("this trace is open already; make another with regard.trace()")
            if not _open:
                _names.clear()
            if self._model is not None:
                _name_modules(self._model)
            _open.append(self)
        self._recording.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._recording.close()
        with _lock:
            _open.remove(self)

    @property
    def records(self) -> list[_core.TracedCall]:
        """The calls so far, in the order in which they ended."""
        return self._recording.calls()

    def __iter__(self) -> Iterator[_core.TracedCall]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def _groups(self) -> dict[_Group, list[_core.TracedCall]]:
        groups: dict[_Group, list[_core.TracedCall]] = {}
        for call in self.records:
            groups.setdefault(_group_of(call), []).append(call)
        return groups

    def summary(self) -> str:
        """A table of the calls, one row for each layer, case and direction, in the order of their
        first calls. The first table measures the machine, which takes about a quarter of a second.
        """
        groups = self._groups()
        if not groups:
            return "no call of regard was made while the trace was open"
        total = sum(call.seconds for calls in groups.values() for call in calls)
        rows = [["layer", "direction", "backend", "kernel", "calls", "time", "of time",
                 "of peak", "of bandwidth", "case"]]
        for group, calls in groups.items():
            seconds = sum(call.seconds for call in calls)
            rows.append([group.layer or "-", group.direction, group.backend, group.kernel or "-",
                         str(len(calls)), _time_text(seconds), f"{100 * seconds / total:.1f} %",
                         _share_text(calls, "share_of_peak"),
                         _share_text(calls, "share_of_bandwidth"), group.case])
        count = sum(map(len, groups.values()))
        return (_table(rows, {4, 5, 6, 7, 8}) +
                f"\n{count} {'call' if count == 1 else 'calls'} in {_time_text(total)}" + self._ranks_text())

    def _ranks_text(self) -> str:
        """A line with what computing and waiting took on this rank; "" without ranks."""
        if not self.rank_activities:
            return ""
        computing, waiting = (sum(a.end - a.begin for a in self.rank_activities if a.kind == kind)
                              for kind in ("computing", "waiting"))
        return (f"\nrank {self.rank_activities[0].rank}: computing {_time_text(computing)}, waiting for messages "
                f"{_time_text(waiting)}")

    def calibration(self, limit: float = 1.5) -> list[Calibration]:
        """Where the cost model is off on this machine: cases whose measured time is more than
        `limit` times the predicted one, or less than its inverse, the farthest first. limit=1 lists
        every case. `regard tune` measures a table that makes predictions better.
        """
        if not limit >= 1:
            raise ValueError(f"limit ({limit}) must be at least 1")
        return [Calibration(**row) for row in _core.calibration(self.records, limit)]

    def to_json(self, indent: int | None = None) -> str:
        """Every call, and the machine's rates, as JSON."""
        return json.dumps({"regard": _core.__version__, "machine": _core.machine_rates(),
                           "calls": [_fields(call) for call in self],
                           **self._ranks_json()}, indent=indent)

    def _ranks_json(self) -> dict[str, Any]:
        return {"rank_activities": [a._asdict() for a in self.rank_activities]} if self.rank_activities else {}

    def plot(self, axes: Any = None) -> Any:
        """A bar for each layer, as long as the time of its calls, of one colour for each backend
        and direction; returns matplotlib's Axes, those that were given."""
        try:
            pyplot: Any = importlib.import_module("matplotlib.pyplot")
        except ImportError as error:
            raise ImportError("regard.trace().plot() draws with matplotlib, which is not "
                              "installed: pip install matplotlib") from error
        axes = pyplot.subplots()[1] if axes is None else axes
        layers = list(dict.fromkeys(group.layer for group in self._groups()))
        ends = dict.fromkeys(layers, 0.0)
        bars: dict[str, dict[str, float]] = {}
        for group, calls in self._groups().items():
            bar = bars.setdefault(f"{group.backend} {group.direction}", {})
            bar[group.layer] = bar.get(group.layer, 0.0) + sum(1e3 * c.seconds for c in calls)
        for label, lengths in bars.items():
            axes.barh([layer or "-" for layer in lengths], list(lengths.values()),
                      left=[ends[layer] for layer in lengths], label=label)
            for layer, length in lengths.items():
                ends[layer] += length
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        return f"<regard.trace: {len(self)} calls>"


def _fields(call: _core.TracedCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in
            ("layer", "case", "direction", "backend", "kernel", "isa", "seconds",
             "predicted_seconds", "operations", "bytes", "share_of_peak", "share_of_bandwidth", "workspace_bytes",
             "thread", "error")}
