"""Changes of another library that can be taken back."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

_ABSENT = object()


class Patches:
    """Entries of tables and attributes of objects that were replaced, and what they were before."""

    def __init__(self) -> None:
        self._entries: list[tuple[MutableMapping[str, Any], str, Any, Any]] = []
        self._attributes: list[tuple[Any, str, Any, Any]] = []

    def put(self, table: MutableMapping[str, Any], name: str, value: Any) -> None:
        """table[name] = value."""
        self._entries.append((table, name, table.get(name, _ABSENT), value))
        table[name] = value

    def set(self, owner: Any, name: str, value: Any) -> None:
        """owner.name = value, of a class or module that has such an attribute itself."""
        self._attributes.append((owner, name, vars(owner)[name], value))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Puts back what was there. What somebody else has put in the same place since stays."""
        for table, name, before, ours in reversed(self._entries):
            if table.get(name, _ABSENT) is not ours:
                continue
            if before is _ABSENT:
                del table[name]
            else:
                table[name] = before
        for owner, name, before, ours in reversed(self._attributes):
            if vars(owner).get(name) is ours:
                setattr(owner, name, before)
        self._entries.clear()
        self._attributes.clear()
