"""A decision and everything that led to it, as plain Python data."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """One failed requirement of one backend. str() is the sentence: "flash does not support
    scores_out; remove it, or use math"."""

    backend: str
    code: str
    message: str  # the sentence without its subject, the backend
    actual: str
    limit: str
    fix: str  # the change that removes it: "remove scores_out"; "" for none
    in_backward: bool = False  # the backward refuses; the forward may well run

    def __str__(self) -> str:
        return f"{self.backend} {self.message}"


class Selection:
    """Which backend runs, and why every other one does not. str() and repr() are the table."""

    def __init__(self, table: str, verbose_table: str, document: str, notes: list[str],
                 plan: dict[str, Any] | None) -> None:
        self._tables = table.rstrip("\n"), verbose_table.rstrip("\n")
        self._document = document
        self.notes = tuple(notes)
        self.plan = plan

    @property
    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._document)
        return data

    def to_dict(self) -> dict[str, Any]:
        """Everything: params, policy, candidates with their verdicts and refusals, plan, notes."""
        return {**self._data, "plan": self.plan, "notes": list(self.notes)}

    @property
    def chosen(self) -> str:
        """The backend that runs; "error" where none can."""
        return str(self._data["chosen"])

    @property
    def ok(self) -> bool:
        return self.chosen != "error"

    @property
    def decided_by(self) -> str:
        return str(self._data["decided_by"])

    @property
    def advice(self) -> str:
        """What to change so that something runs; "" where a backend is chosen."""
        return str(self._data["advice"])

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._data["warnings"])

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """One verdict a backend, in the order of preference."""
        return list(self._data["candidates"])

    @property
    def cost_source(self) -> str:
        """What the predicted times of the candidates (forward_time, backward_time: seconds, and the
        spread within which nine of ten calls are) come from: "default rates" or a tuning table; ""
        where nothing is predicted."""
        return str(self._data["cost_source"])

    @property
    def runner_up(self) -> dict[str, Any] | None:
        """The fastest backend beside the chosen one: backend, ratio (its predicted time over that of
        the chosen one) and changes (field, value, text), each of which alone would make it the
        better choice. None where no other one could run."""
        runner_up: dict[str, Any] | None = self._data["runner_up"]
        return runner_up

    @property
    def given_up(self) -> str:
        """What max_workspace_bytes excluded that would have been chosen; "" for nothing."""
        return str(self._data["given_up"])

    @property
    def paths(self) -> list[dict[str, Any]]:
        """Padded with "lengths", with a "mask", or "packed": path, operations, bytes, predicted seconds,
        and which is the fastest. Empty for a call without lengths."""
        return list(self._data["paths"])

    @property
    def mask_blocks(self) -> dict[str, Any] | None:
        """The shares of blocks of block_size queries by as many keys that the mask function and the window hide
        ("empty") and of which elements decide ("partial"), 0 to 1. None where that depends on data, or there is
        no mask function."""
        blocks: dict[str, Any] | None = self._data["mask_blocks"]
        return blocks

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Every reason of every backend."""
        return tuple(
            Refusal(candidate["backend"], refusal["code"], refusal["message"], refusal["actual"],
                    refusal["limit"], (refusal["fix"] or {}).get("text", ""),
                    refusal["in_backward"])
            for candidate in self.candidates for refusal in candidate["refusals"])

    def table(self, verbose: bool = False) -> str:
        """As `regard explain` prints it. `verbose` adds the four facts of each backend, and the
        backends of CUDA devices where the case is on a CPU."""
        return "\n".join([self._tables[verbose], *(f"note     {note}" for note in self.notes)])

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Everything that to_dict() has of the decision: a notebook leaves nothing out."""
        data = self.to_dict()
        by = f"{self.chosen if self.ok else 'none'}, by {self.decided_by}"
        above = [("case", data["case"]), ("policy", _pairs(data["policy"])),
                 ("env", _pairs(data["environment"])), ("chosen", by), ("change", self.advice),
                 ("next", _pairs(self.runner_up)), ("gave up", self.given_up),
                 ("predicted from", self.cost_source)]
        below = [("mask", _pairs(self.mask_blocks)), *(("path", _pairs(path)) for path in self.paths),
                 ("plan", _pairs(self.plan)), *(("note", note) for note in self.notes),
                 *(("warning", warning) for warning in self.warnings)]
        sentences: dict[str, list[str]] = {}
        for refusal in self.refusals:
            sentences.setdefault(refusal.backend, []).append(refusal.message)
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in (*_COLUMNS, "reasons"))
        rows = [_row([_cell(c[name]) for name in _COLUMNS], sentences.get(c["backend"], []))
                for c in self.candidates]
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return _paragraphs(above) + table + _paragraphs(below)


_COLUMNS = ("backend", "status", "built", "enabled", "usable", "chosen", "workspace_bytes",
            "backward_workspace_bytes", "forward_time", "backward_time", "error_bound", "determinism")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return _pairs(value)
    return "-" if value is None else str(value)


def _row(cells: list[str], sentences: list[str]) -> str:
    reasons = "<br>".join(map(html.escape, sentences))
    return f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}<td>{reasons}</td></tr>"


def _pairs(values: dict[str, Any] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in (values or {}).items()
                     if value not in (None, []))


def _paragraphs(lines: list[tuple[str, str]]) -> str:
    return "".join(f"<p><b>{name}</b> {html.escape(text)}</p>" for name, text in lines if text)
