"""Heads instead of rows: an exchange after which each rank has some heads of all rows of its group."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ._layouts import Pieces
from ._rank_messages import HEADS, Messages


class Heads:
    """`members` exchange rows for heads; `pieces` are those of each, and rows of the group lie by position."""

    def __init__(self, messages: Messages, members: Sequence[int], pieces: list[Pieces]) -> None:
        self.messages, self.members = messages, list(members)
        self.me = self.members.index(messages.link.rank)
        self.pieces = pieces
        self.rows = [sum(length for _, length in own) for own in pieces]
        order = sorted((begin, length, member, at) for member, own in enumerate(pieces)
                       for (begin, length), at in zip(own, _offsets(own)))
        self.joined: Pieces = [(begin, length) for begin, length, _, _ in order]
        self._order = order

    def share(self, heads: int, member: int) -> slice:
        """The heads that a member gets; of fewer heads than members one that several have."""
        count = len(self.members)
        if heads % count == 0:
            each = heads // count
            return slice(member * each, (member + 1) * each)
        head = member * heads // count
        return slice(head, head + 1)

    def to_heads(self, x: Tensor) -> Tensor:
        """[B,H,own rows,...] as [B,own heads,rows of the group,...]."""
        shares = [self.share(x.shape[1], member) for member in range(len(self.members))]
        own = shares[self.me]
        parts = [x.new_empty((x.shape[0], own.stop - own.start, rows, *x.shape[3:])) for rows in self.rows]
        self._exchange([x[:, share].contiguous() for share in shares], parts)
        whole = x.new_empty((x.shape[0], own.stop - own.start, sum(self.rows), *x.shape[3:]))
        for target, source in self._places(whole, parts):
            target.copy_(source)
        return whole

    def to_rows(self, x: Tensor, heads: int) -> Tensor:
        """The inverse. Of heads that several members have, the sum over them in their order."""
        parts = [x.new_empty((x.shape[0], x.shape[1], rows, *x.shape[3:])) for rows in self.rows]
        for target, source in self._places(x, parts):
            source.copy_(target)
        shares = [self.share(heads, member) for member in range(len(self.members))]
        rows = self.rows[self.me]
        received = [x.new_empty((x.shape[0], s.stop - s.start, rows, *x.shape[3:])) for s in shares]
        self._exchange(parts, received)
        out = x.new_empty((x.shape[0], heads, rows, *x.shape[3:]))
        filled = 0  # heads that have a first summand
        for share, part in zip(shares, received):
            if share.start >= filled:
                out[:, share] = part
                filled = share.stop
            else:
                out[:, share] += part
        return out

    def _places(self, whole: Tensor, parts: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Views of the same rows in the group's tensor and in the members' ones."""
        places, begin = [], 0
        for _, length, member, at in self._order:
            places.append((whole.narrow(2, begin, length), parts[member].narrow(2, at, length)))
            begin += length
        return places

    def _exchange(self, outgoing: list[Tensor], incoming: list[Tensor]) -> None:
        begun = []
        for member, rank in enumerate(self.members):
            if member == self.me:
                incoming[member] = outgoing[member]
                continue
            begun += self.messages.receive(HEADS, rank, incoming[member])
            self.messages.send(HEADS, rank, outgoing[member])
        self.messages.wait(begun)
        self.messages.finish()
        self.messages.step += 1


def _offsets(pieces: Pieces) -> list[int]:
    found, at = [], 0
    for _, length in pieces:
        found.append(at)
        at += length
    return found
