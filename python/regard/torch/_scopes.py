"""What sdpa_kernel and exportable have open on this thread.

Thread-local attributes, not context variables: torch.compile traces the former, guards included. A
scope holds for its thread; regard.policy is the one that follows asyncio tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from .. import _core
from .._policy import policy

# PyTorch's numbers; the position is what an operator's `state` tensor holds.
NAMES = ("math", "flash", "efficient", "cudnn")
_ACCEPTED = ("a torch.nn.attention.SDPBackend of MATH, FLASH_ATTENTION, EFFICIENT_ATTENTION or "
             "CUDNN_ATTENTION, or a name: 'math', 'flash', 'efficient', 'cudnn'")


class _State(threading.local):
    def __init__(self) -> None:  # runs in each thread; attributes of a class would have no guards
        self.backends = ""  # names in order, "!" in front where it is a priority; "" = no scope
        self.exportable = False


_state = _State()
_policies: dict[str, _core.Policy] = {}


class SdpaError(ValueError, RuntimeError):
    """A wrong argument of a drop-in: PyTorch raises RuntimeError there, regard ValueError."""


def backend_name(backend: Any, argument: str = "backends") -> str:
    """regard's name of a backend that is given as PyTorch's or by its name."""
    if isinstance(backend, SDPBackend):
        number = int(backend.value)
        if 0 <= number < len(NAMES):
            return NAMES[number]
    elif isinstance(backend, str):
        if backend in NAMES:
            return backend
    else:
        raise TypeError(f"{argument} ({backend!r}) must be {_ACCEPTED}")
    raise ValueError(f"{argument} ({backend!r}) must be {_ACCEPTED}")


def current_backends() -> str:
    return _state.backends


def is_exporting() -> bool:
    return _state.exportable


def current_policy() -> _core.Policy | None:
    """What the scopes of this thread say to the selector."""
    return call_policy("math" if _state.exportable else _state.backends)


def call_policy(backends: str) -> _core.Policy | None:
    """The policy of a call that an sdpa_kernel scope of that text is around."""
    if not backends:
        return None
    made = _policies.get(backends)
    if made is None:
        names = backends.lstrip("!").split(",")
        made = _core.Policy(only=names, prefer=names if backends[0] == "!" else None)
        _policies[backends] = made
    return made


def _require_math(backends: str, what: str) -> None:
    if backends and "math" not in backends.lstrip("!").split(","):
        raise ValueError(f"{what} allows only backends whose graph can be exported, 'math', and "
                         f"sdpa_kernel({backends.lstrip('!').split(',')}) excludes it")


class sdpa_kernel:  # noqa: N801 - PyTorch's name
    """torch.nn.attention.sdpa_kernel for regard.torch: only these backends, for this thread.

    An inner scope replaces an outer one. With set_priority their order is the order of preference.
    """

    def __init__(self, backends: SDPBackend | str | Iterable[SDPBackend | str],
                 set_priority: bool = False) -> None:
        if isinstance(backends, (SDPBackend, str)):
            backends = [backends]
        if not isinstance(backends, (list, tuple)):
            raise TypeError(f"backends ({backends!r}) must be {_ACCEPTED}, or a list of them")
        if not isinstance(set_priority, bool):
            raise TypeError(f"set_priority ({set_priority!r}) must be True or False")
        names = list(dict.fromkeys([backend_name(backend) for backend in backends]))
        if not names:
            raise ValueError("backends ([]) must name at least one backend")
        self._text = ("!" if set_priority else "") + ",".join(names)
        self._outer: list[str] = []

    def __enter__(self) -> None:
        if _state.exportable:
            _require_math(self._text, "exportable()")
        self._outer.append(_state.backends)
        _state.backends = self._text

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _state.backends = self._outer.pop()


class exportable:  # noqa: N801 - used as a function
    """Inside, attention is plain ATen operators: a graph that runs where regard is not installed.

    MATH is the one backend that has such a graph, so it is an error where a policy or an
    sdpa_kernel scope, outside or inside, excludes it.
    """

    def __init__(self) -> None:
        self._scopes: list[tuple[bool, policy | None]] = []

    def __enter__(self) -> None:
        _require_math(_state.backends, "exportable()")
        scope = None
        if not torch.compiler.is_dynamo_compiling():
            # Narrows: what an outer regard.policy excludes stays excluded, and is an error.
            scope = policy(only=["math"])
            scope.__enter__()
            try:
                selection = _core.explain("b1 hq1 sq1 d1 f32 lse")
                if not selection.ok:
                    from .._errors import NoBackendError

                    raise NoBackendError("exportable() allows only 'math', which cannot run:\n"
                                         f"{selection}", selection)
            except BaseException:
                scope.__exit__(None, None, None)
                raise
        self._scopes.append((_state.exportable, scope))
        _state.exportable = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _state.exportable, scope = self._scopes.pop()
        if scope is not None:
            scope.__exit__(kind, error, trace)
