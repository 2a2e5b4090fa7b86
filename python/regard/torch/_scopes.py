"""What sdpa_kernel, exportable and context_parallel have open on this thread.

Thread-local attributes, not context variables: torch.compile traces the former, guards included. A
scope holds for its thread; regard.use_policy is the one that follows asyncio tasks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.nn.attention import SDPBackend

from .. import _core
from .._errors import NoBackendError

# PyTorch's numbers; the position is what an operator's `state` tensor holds.
NAMES = ("math", "flash", "efficient", "cudnn")
_ACCEPTED = ("a torch.nn.attention.SDPBackend of MATH, FLASH_ATTENTION, EFFICIENT_ATTENTION or "
             "CUDNN_ATTENTION, or a name: 'math', 'flash', 'efficient', 'cudnn'")
# What names them, in small letters: as everywhere in regard, PyTorch's spellings too.
_SPELLINGS = {**{name: name for name in NAMES},
              **{f"{name}_attention": name for name in NAMES if name != "math"},
              "memory_efficient": "efficient"}
_NONE = "none"  # an sdpa_kernel scope that leaves no backend
_PLAIN_CALL = "b1 hq1 sq1 d1 f32 lse"
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _State(threading.local):
    def __init__(self) -> None:  # runs in each thread; attributes of a class would have no guards
        self.backends = ""  # names in order, "!" in front where it is a priority; "" = no scope
        self.open: tuple[str, ...] = ()  # of every sdpa_kernel scope; the last is `backends`
        self.exportable = 0  # how many are open
        self.ranks: Any = None  # the innermost context_parallel; None where none is open
        self.open_ranks: tuple[Any, ...] = ()


_state = _State()
_policies: dict[str, _core.Policy] = {}


class ArgumentError(ValueError, RuntimeError):
    """An argument of a drop-in that cannot be used; the message names it, its value and what is expected.

    regard.torch, regard.flash_attn and regard.transformers raise it. It is a ValueError, as
    regard.attention raises, and a RuntimeError, as PyTorch raises: code that catches either works.

        >>> import torch, regard.torch
        >>> q = torch.ones(1, 2, 5, 64)
        >>> try:
        ...     regard.torch.scaled_dot_product_attention(q, q, q, dropout_p=2.0)
        ... except regard.torch.ArgumentError as error:
        ...     print(error)
        dropout_p (2.0) must be from 0 to 1

    More: `python -m regard docs pytorch`.
    """


ArgumentError.__module__ = "regard.torch"  # its public name, in tracebacks and pickles


class _DropInErrors:
    """Inside, a ValueError of the library is a drop-in's."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and not isinstance(error, ArgumentError):
            raise ArgumentError(*error.args) from None


drop_in_errors = _DropInErrors()


def backend_name(backend: Any, argument: str = "backends") -> str:
    """regard's name of a backend that is given as PyTorch's or by its name."""
    if isinstance(backend, SDPBackend):
        number = int(backend.value)
        if 0 <= number < len(NAMES):
            return NAMES[number]
    elif isinstance(backend, str):
        name = _SPELLINGS.get(backend.lower().removeprefix("sdpbackend."))
        if name is not None:
            return name
    else:
        raise TypeError(f"{argument} ({backend!r}) must be {_ACCEPTED}")
    raise ValueError(f"{argument} ({backend!r}) must be {_ACCEPTED}")


def _is_overrideable(backend: Any) -> bool:
    return isinstance(backend, SDPBackend) and backend == SDPBackend.OVERRIDEABLE


def current_backends() -> str:
    return _state.backends


def is_exporting() -> bool:
    return _state.exportable > 0


def current_ranks() -> Any:
    """The context_parallel scope that holds on this thread."""
    return _state.ranks


def open_ranks(scope: Any) -> None:
    _state.open_ranks = (*_state.open_ranks, scope)
    _state.ranks = scope


def close_ranks(scope: Any) -> None:
    """Whatever the order in which scopes end."""
    at = len(_state.open_ranks) - 1 - _state.open_ranks[::-1].index(scope)
    _state.open_ranks = _state.open_ranks[:at] + _state.open_ranks[at + 1:]
    _state.ranks = _state.open_ranks[-1] if _state.open_ranks else None


def refuse_ranks(what: str) -> None:
    """Raises in a context_parallel scope, where `what` would compute on this rank's keys alone."""
    if _state.ranks is not None:
        raise ArgumentError(f"{what} must be called outside of context_parallel: it attends only to the "
                            "keys of this rank; scaled_dot_product_attention attends to those of all ranks")


def current_policy() -> _core.Policy | None:
    """What the scopes of this thread say to the selector."""
    return call_policy("math" if is_exporting() else _state.backends)


def _named(backends: str) -> list[str]:
    return [] if backends == _NONE else backends.lstrip("!").split(",")


def call_policy(backends: str) -> _core.Policy | None:
    """The policy of a call that an sdpa_kernel scope of that text is around."""
    if not backends:
        return None
    made = _policies.get(backends)
    if made is None:
        names = _named(backends)
        made = _core.Policy(only=names, prefer=names if backends[0] == "!" else None)
        _policies[backends] = made
    return made


def _is_math_excluded(backends: str) -> bool:
    """Whether a policy or the environment excludes MATH of a call in such an sdpa_kernel scope."""
    selection = _core.explain(_PLAIN_CALL, policy=call_policy(backends))
    return not any(c["enabled"] and c["usable"] for c in selection.candidates
                   if c["backend"] == "math")


# torch.compile asks while it traces, as torch.compiler.assume_constant_result would have it; that
# function imports all of torch._dynamo.
setattr(_is_math_excluded, "_dynamo_marked_constant", True)


def require_math(backends: str, what: str) -> None:
    """Raises where MATH, whose formula `what` runs, is excluded by a scope, a policy or the
    environment."""
    if backends and "math" not in _named(backends):
        raise ValueError(f"{what} allows only 'math', which has a graph of plain operators, and "
                         f"sdpa_kernel({_named(backends)}) excludes it")
    if _is_math_excluded(backends):
        selection = _core.explain(_PLAIN_CALL, policy=call_policy(backends))
        reasons = ". ".join(str(r) for r in selection.refusals if r.backend == "math")
        raise NoBackendError(f"{what} allows only 'math', which cannot run: {reasons}", selection)


def _without_last(scopes: tuple[str, ...], text: str) -> tuple[str, ...]:
    """The scopes less the innermost of that text: which of several alike it is makes no odds."""
    for at in range(len(scopes) - 1, -1, -1):
        if scopes[at] == text:
            return scopes[:at] + scopes[at + 1:]
    return scopes


def _decorated(function: _Function, scope: Callable[[], Any]) -> _Function:
    """Each call in a scope of its own, made there: torch.compile enters no other."""

    @functools.wraps(function)
    def inside(*args: Any, **keywords: Any) -> Any:
        with scope():
            return function(*args, **keywords)

    return inside  # type: ignore[return-value]


class sdpa_kernel:  # noqa: N801 - PyTorch's name
    """torch.nn.attention.sdpa_kernel for regard.torch: only these backends, for this thread.

    A context or a decorator. An inner scope replaces an outer one. With set_priority their order is
    the order of preference. OVERRIDEABLE, which other devices register with PyTorch, is no backend
    here.

        >>> import torch, regard.torch
        >>> q = k = v = torch.ones(1, 2, 5, 64)
        >>> with regard.torch.sdpa_kernel(["math", "efficient"], set_priority=True):
        ...     regard.torch.explain(q, k, v).chosen
        'math'

    Raises TypeError or ValueError for another backend and for an empty list.

    More: `python -m regard docs pytorch`.
    """

    def __init__(self, backends: SDPBackend | str | Sequence[SDPBackend | str],
                 set_priority: bool = False) -> None:
        if isinstance(backends, (SDPBackend, str)):
            backends = [backends]
        if not isinstance(backends, (list, tuple)):
            raise TypeError(f"backends ({backends!r}) must be {_ACCEPTED}, or a list of them")
        if not isinstance(set_priority, bool):
            raise TypeError(f"set_priority ({set_priority!r}) must be True or False")
        if not backends:
            raise ValueError("backends ([]) must name at least one backend")
        names = list(dict.fromkeys([backend_name(backend) for backend in backends
                                    if not _is_overrideable(backend)]))
        self._given = backends, set_priority
        self._text = ("!" if set_priority else "") + ",".join(names) if names else _NONE

    def __call__(self, function: _Function) -> _Function:
        backends, set_priority = self._given
        return _decorated(function, lambda: sdpa_kernel(backends, set_priority))

    def __enter__(self) -> None:
        if is_exporting():
            require_math(self._text, "exportable()")
        _state.open = (*_state.open, self._text)
        _state.backends = self._text

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        # By what it says and not by its place: asyncio tasks of one thread may end in any order.
        _state.open = _without_last(_state.open, self._text)
        _state.backends = _state.open[-1] if _state.open else ""


class exportable:  # noqa: N801 - used as a function
    """Inside, attention is plain ATen operators: a graph that runs where regard is not installed.

    MATH is the one backend that has such a graph, so it is an error where a policy, the environment
    or an sdpa_kernel scope, outside or inside, excludes it.

        >>> import torch, regard.torch
        >>> class Model(torch.nn.Module):
        ...     def forward(self, q):
        ...         return regard.torch.scaled_dot_product_attention(q, q, q)
        >>> with regard.torch.exportable():
        ...     program = torch.export.export(Model(), (torch.ones(1, 2, 5, 64),))
        >>> "regard" in str(program.graph)
        False

    Raises ValueError where an sdpa_kernel scope excludes MATH, regard.NoBackendError where a policy
    or the environment does.

    More: `python -m regard docs pytorch`.
    """

    def __call__(self, function: _Function) -> _Function:
        return _decorated(function, exportable)

    def __enter__(self) -> None:
        require_math(_state.backends, "exportable()")
        _state.exportable += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        _state.exportable -= 1
