"""Policies for a stretch of code."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType
from typing import Any

from . import _core


class use_policy:  # noqa: N801 - used as a function, as contextlib.suppress is
    """Applies a policy to every call inside the with statement.

    Takes a regard.Policy, or its fields as keywords. The scope belongs to the context of
    contextvars: another thread or asyncio task that runs meanwhile is not touched. Scopes nest:
    `only` narrows, the rest overrules; replace=True hides outer scopes. `as` gives the Policy.

        >>> import regard
        >>> with regard.use_policy(prefer=["math"]):
        ...     regard.explain("b1 hq8 sq128 d64 f32").chosen
        'math'

    Raises TypeError or ValueError for a field, as regard.Policy does, and RuntimeError where the
    same scope is entered twice.

    More: `python -m regard docs python`.
    """

    def __init__(self, value: _core.Policy | None = None, /, *, replace: bool = False,
                 **fields: Any) -> None:
        if value is not None and fields:
            raise TypeError("use_policy() takes a regard.Policy or fields, and both were given")
        if value is not None and not isinstance(value, _core.Policy):
            raise TypeError(f"use_policy() takes a regard.Policy or fields, not {value!r}")
        self.value = _core.Policy(**fields) if value is None else value
        self._replace = replace
        self._token: Token[_core.Scopes] | None = None

    def __enter__(self) -> _core.Policy:
        if self._token is not None:
            raise RuntimeError(
                "this policy scope is open already; make another with regard.use_policy()")
        outer = _core.scopes.get(None)
        self._token = _core.scopes.set(_core.with_scope(outer, self.value, self._replace))
        return self.value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        token, self._token = self._token, None
        assert token is not None, "left without having been entered"
        _core.scopes.reset(token)

    def __repr__(self) -> str:
        return f"regard.use_policy({self.value!r}{', replace=True' if self._replace else ''})"
