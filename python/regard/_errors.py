"""The exceptions of regard that are not Python's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._selection import Selection


class NoBackendError(RuntimeError):
    """No backend can run the call; `selection` has every reason of every backend."""

    def __init__(self, message: str, selection: Selection) -> None:
        super().__init__(message, selection)
        self.selection = selection

    def __str__(self) -> str:
        return str(self.args[0])


NoBackendError.__module__ = "regard"  # its public name, in tracebacks and pickles
