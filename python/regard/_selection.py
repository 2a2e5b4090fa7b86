"""A decision and everything that led to it, as plain Python data."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """One failed requirement of one backend; `fix` is the change that removes it, "" for none."""

    backend: str
    code: str
    actual: str
    limit: str
    fix: str

    def __str__(self) -> str:
        fix = f" (fix: {self.fix})" if self.fix else ""
        # A refusal that names no feature, as not_built, is its limit alone.
        limit = f"limit {self.limit}" if self.limit and self.actual else self.limit
        words = ", ".join(word for word in (self.actual, limit) if word)
        return f"{self.backend}: {self.code}: {words}{fix}"


def _fix_text(fix: dict[str, str] | None) -> str:
    """In the words of the table: "without attn_bias", "head_dim_qk<=256", "dtype_q=bf16"."""
    if fix is None:
        return ""
    if fix["op"] == "clear":
        return f"without {fix['field']}"
    return f"{fix['field']}{'<=' if fix['op'] == 'at_most' else '='}{fix['value']}"


def _size_text(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


class Selection:
    """Which backend runs, and why every other one does not. str() is the table."""

    def __init__(self, table: str, document: str, notes: list[str],
                 plan: dict[str, Any] | None) -> None:
        self._table = table
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
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._data["warnings"])

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """One verdict a backend, in the order of preference."""
        return list(self._data["candidates"])

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Every reason of every backend."""
        return tuple(
            Refusal(candidate["backend"], refusal["code"], refusal["actual"], refusal["limit"],
                    _fix_text(refusal.get("fix")))
            for candidate in self.candidates for refusal in candidate["refusals"])

    def __str__(self) -> str:
        lines = [self._table.rstrip("\n")]
        if self.plan is not None:
            plan = self.plan
            lines += ["", f"plan     {plan['kernel']} ({plan['isa']}), workers {plan['workers']}, "
                          f"tile_q {plan['tile_q']}, tile_kv {plan['tile_kv']}, "
                          f"workspace {_size_text(plan['workspace_bytes'])}"]
        lines += [f"note     {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<regard.Selection: {self.chosen}, by {self.decided_by}>"

    def _repr_html_(self) -> str:
        def cells(tag: str, texts: list[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(t)}</{tag}>" for t in texts) + "</tr>"

        rows = [cells("th", ["backend", "built", "enabled", "usable", "chosen", "reasons"])]
        for candidate in self.candidates:
            facts = ["yes" if candidate[fact] else "no"
                     for fact in ("built", "enabled", "usable", "chosen")]
            reasons = "; ".join(str(r).split(": ", 1)[1] for r in self.refusals
                                if r.backend == candidate["backend"])
            rows.append(cells("td", [candidate["backend"], *facts, reasons]))
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        title = html.escape(f"{self.chosen}, by {self.decided_by}")
        return f"<p><b>{title}</b></p><table>{''.join(rows)}</table>{notes}"
