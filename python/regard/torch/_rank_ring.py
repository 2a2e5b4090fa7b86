"""Rows of one rank over the keys of several: each pair of pieces is one call, partial results are merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _core
from ._layouts import Pieces
from ._rank_messages import BLOCKS, GRADIENTS, Messages, Pair

_STATES = 8  # partial results in memory at most, before they are merged


class Rules(NamedTuple):
    """Which keys a query sees, by positions in the whole sequence, and the other options of a call."""

    left: int       # -1: all keys before
    right: int      # -1: all keys behind; 0: causal
    shift: int      # query i stands at key i + shift
    starts: list[int] | None
    has_diagonal: bool  # something depends on positions: a window, causality or ALiBi
    keywords: dict[str, Any]

    def sees(self, q: tuple[int, int], k: tuple[int, int]) -> bool:
        """Whether any query of a piece sees any key of another."""
        if not q[1] or not k[1] or self._document(q[0]) != self._document(k[0]):
            return False
        first, last = q[0] + self.shift, q[0] + q[1] - 1 + self.shift
        return (self.right < 0 or k[0] <= last + self.right) and (
            self.left < 0 or k[0] + k[1] - 1 >= first - self.left)

    def _document(self, position: int) -> int:
        return 0 if self.starts is None else sum(s <= position for s in self.starts)

    def of_pair(self, q: tuple[int, int], k: tuple[int, int]) -> dict[str, Any]:
        if not self.has_diagonal:
            return self.keywords
        return {**self.keywords, "diagonal": q[0] + self.shift - k[0],
                "window": (self.left, self.right)}


class Ring:
    """`members` share the sequence, each with its pieces; `me` is this rank's place among them."""

    def __init__(self, messages: Messages, members: Sequence[int], pieces_q: list[Pieces],
                 pieces_kv: list[Pieces], rules: Rules) -> None:
        self.messages, self.members, self.rules = messages, list(members), rules
        self.me = self.members.index(messages.link.rank)
        self.pieces_q, self.pieces_kv = pieces_q, pieces_kv
        self.count = len(self.members)

    def needs(self, member: int, owner: int) -> bool:
        return any(self.rules.sees(q, k) for q in self.pieces_q[member] for k in self.pieces_kv[owner])

    def _passes(self, member: int, owner: int) -> bool:
        """Whether the ring carries an owner's keys to this member: it needs them, or one behind it does."""
        behind = (owner - member) % self.count
        return any(self.needs((member + n) % self.count, owner) for n in range(behind))

    def _empty(self, owner: int, k: Tensor, v: Tensor, dtype: torch.dtype | None = None) -> Pair:
        rows = sum(length for _, length in self.pieces_kv[owner])
        return Pair([(*x.shape[:2], rows, x.shape[3]) for x in (k, v)], k, dtype)

    def _own(self, k: Tensor, v: Tensor) -> Pair:
        block = self._empty(self.me, k, v)
        block.first.copy_(k)
        block.second.copy_(v)
        return block

    def around(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(owner, keys, values) around the ring. The next block travels while this one is used."""
        block: Pair | None = self._own(k, v)
        after, before = (self.me + 1) % self.count, (self.me - 1) % self.count
        for step in range(self.count):
            owner, following = (self.me - step) % self.count, (self.me - step - 1) % self.count
            begun: list[Any] = []
            coming: Pair | None = None
            self.messages.step = step
            if step + 1 < self.count:
                if self._passes(after, owner):
                    assert block is not None
                    self.messages.send(BLOCKS, self.members[after], block.whole)
                if self._passes(self.me, following):
                    coming = self._empty(following, k, v)
                    begun = self.messages.receive(BLOCKS, self.members[before], coming.whole)
            if block is not None:
                yield owner, block.first, block.second
            self.messages.step = step
            self.messages.wait(begun)
            self.messages.finish()  # two blocks in memory, not all of them
            block = coming

    def gathered(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The same with every block first, in the order of ranks."""
        own = self._own(k, v)
        blocks, begun = {self.me: own}, []
        self.messages.step = 0
        for other, rank in enumerate(self.members):
            if other == self.me:
                continue
            if self.needs(other, self.me):
                self.messages.send(BLOCKS, rank, own.whole)
            if self.needs(self.me, other):
                blocks[other] = self._empty(other, k, v)
                begun += self.messages.receive(BLOCKS, rank, blocks[other].whole)
        self.messages.wait(begun)
        for owner, block in sorted(blocks.items()):
            yield owner, block.first, block.second

    def _pairs(self, owner: int) -> Iterator[tuple[slice, slice, dict[str, Any], int]]:
        """Rows, keys and options of each call with an owner's keys; and which piece of rows it is."""
        at_q = 0
        for n, q in enumerate(self.pieces_q[self.me]):
            at_k = 0
            for k in self.pieces_kv[owner]:
                if self.rules.sees(q, k):
                    yield slice(at_q, at_q + q[1]), slice(at_k, at_k + k[1]), self.rules.of_pair(q, k), n
                at_k += k[1]
            at_q += q[1]

    def forward(self, q: Tensor, blocks: Iterator[tuple[int, Tensor, Tensor]], depth: int,
                policy: Any) -> tuple[Tensor, Tensor]:
        """out and lse of this rank's rows, in f32 (f64 for f64)."""
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        states: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for _, k, v, pairs in ((owner, k, v, self._pairs(owner)) for owner, k, v in blocks):
            for rows, keys, keywords, n in pairs:
                partial = q.new_empty((*q.shape[:2], rows.stop - rows.start, depth), dtype=wide)
                _, partial_lse = _core.attention(q[:, :, rows], k[:, :, keys], v[:, :, keys], out=partial,
                                                 return_lse=True, policy=policy, **keywords)
                found = states.setdefault(n, [])
                found.append((partial, partial_lse))
                if len(found) == _STATES:
                    states[n] = [_core.merge_states(found)]
        self.messages.finish()
        return self._joined(states, q.new_zeros((*q.shape[:3], depth), dtype=wide))

    def _joined(self, states: dict[int, list[tuple[Tensor, Tensor]]], out: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of all pieces; zeros where a piece sees no key."""
        lse = out.new_full(out.shape[:3], float("-inf"))
        at = 0
        for n, (_, length) in enumerate(self.pieces_q[self.me]):
            if n in states:
                merged = states[n][0] if len(states[n]) == 1 else _core.merge_states(states[n])
                if length == out.shape[2]:
                    return merged
                out[:, :, at:at + length], lse[:, :, at:at + length] = merged
            at += length
        return out, lse

    def backward(self, rows_of: tuple[Tensor, ...], blocks: Iterator[tuple[int, Tensor, Tensor]],
                 k: Tensor, v: Tensor, policy: Any) -> tuple[Tensor, Tensor, Tensor]:
        """d_q, d_k and d_v in f32. rows_of: d_out, q, out (of q's type), lse and delta of this rank's rows.

        A member sends what it adds to an owner's gradients at once; the owner adds it up in the order of members.
        """
        d_out, q, out, lse, delta = rows_of
        d_q = torch.zeros_like(q, dtype=lse.dtype)
        self.messages.step = self.count
        total = {other: self._empty(self.me, k, v, lse.dtype) for other in range(self.count)
                 if other == self.me or self.needs(other, self.me)}
        waiting = {other: self.messages.receive(GRADIENTS, self.members[other], added.whole)
                   for other, added in total.items() if other != self.me}
        total[self.me].whole.zero_()
        for owner, keys_of, values_of in blocks:
            added = total[self.me] if owner == self.me else self._empty(owner, k, v, lse.dtype)
            added.whole.zero_()
            for rows, keys, keywords, _ in self._pairs(owner):
                saved = _core.Saved(lse=lse[:, :, rows].contiguous())
                grads = _core.attention_backward(
                    d_out[:, :, rows], q[:, :, rows], keys_of[:, :, keys], values_of[:, :, keys], out[:, :, rows],
                    saved, delta=delta[:, :, rows].contiguous(), policy=policy, **keywords)
                d_q[:, :, rows] += grads.d_q
                added.first[:, :, keys] += grads.d_k
                added.second[:, :, keys] += grads.d_v
            if owner != self.me and self.needs(self.me, owner):
                self.messages.step = self.count
                self.messages.send(GRADIENTS, self.members[owner], added.whole)
        for begun in waiting.values():
            self.messages.wait(begun)
        parts = [total[other] for other in sorted(total)]
        for part in parts[1:]:
            parts[0].whole += part.whole
        self.messages.finish()
        return d_q, parts[0].first, parts[0].second
