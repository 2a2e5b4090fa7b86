"""Attention of all ranks together: one plan that each of them makes alike, and its forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._group import Communicator
from ._layouts import Pieces, joined, within_documents
from ._options import Options, native_keywords
from ._rank_heads import Heads
from ._rank_messages import Messages
from ._rank_ring import Ring, Rules
from ._scopes import ArgumentError


class Shape(NamedTuple):
    """What a call computes over all ranks."""

    comm: str
    topology: tuple[int, int]
    pieces_q: list[Pieces]
    pieces_kv: list[Pieces]
    length_q: int
    length_kv: int
    starts: list[int] | None
    timeout: float


def rules_of(options: Options, shape: Shape) -> Rules:
    left, right = options.window_left, options.window_right
    if options.is_causal:
        right = 0 if right < 0 else min(right, 0)
    shift = shape.length_kv - shape.length_q if options.diagonal == "bottom_right" else 0
    has_diagonal = left >= 0 or right >= 0 or options.alibi_slopes is not None
    plain = options._replace(is_causal=False, window_left=-1, window_right=-1, sinks=None, alibi_slopes=None)
    keywords = native_keywords(plain)
    if options.alibi_slopes is not None:
        keywords["alibi_slopes"] = options.alibi_slopes
    return Rules(left, right, shift, shape.starts, has_diagonal, keywords)


def refusal(comm: str, topology: tuple[int, int], heads: tuple[int, int], options: Options) -> str:
    """Why these ranks cannot compute it so; "" where they can."""
    ranks = topology[0] * topology[1]
    if options.dropout_p and ranks > 1:
        return f"dropout_p ({options.dropout_p:g}) must be 0 in context_parallel of several ranks"
    if comm not in ("a2a", "a2a+p2p"):
        return ""
    count = ranks if comm == "a2a" else topology[1]
    if heads[0] % count:
        return f"heads of query ({heads[0]}) must be a multiple of the ranks that divide them, {count}, with comm={comm!r}"
    if heads[1] % count and count % heads[1]:
        return (f"heads of key ({heads[1]}) must be a multiple of the ranks that divide them, {count}, or divide it, with "
                f"comm={comm!r}")
    return ""


def choose(topology: tuple[int, int], heads: tuple[int, int], options: Options) -> str:
    """The algorithm whose ranks send least: keys and values go to every rank, or a share of all heads once."""
    ranks = topology[0] * topology[1]
    sent = {"p2p": (ranks - 1) * 2 * heads[1],
            "a2a": (ranks - 1) * (3 * heads[0] + 2 * max(heads[1], ranks)) / ranks}  # out is f32: twice
    if topology[0] > 1:
        inner = topology[1]
        sent["a2a+p2p"] = ((inner - 1) * (3 * heads[0] + 2 * max(heads[1], inner)) / inner
                           + (topology[0] - 1) * 2 * max(1, heads[1] // inner))
    possible = [name for name in sent if not refusal(name, topology, heads, options)]
    return min(possible or ["p2p"], key=sent.__getitem__)


class Call:
    """One call of all ranks: rows exchanged for heads within groups, and a ring of groups. Either may be of one."""

    def __init__(self, link: Communicator, shape: Shape, options: Options, heads: tuple[int, int]) -> None:
        why = refusal(shape.comm, shape.topology, heads, options)
        if why:
            raise ArgumentError(why)
        self.options, self.heads = options, heads
        self.comm = choose(shape.topology, heads, options) if shape.comm == "auto" else shape.comm
        groups, inner = {"a2a": (1, link.size), "a2a+p2p": shape.topology}.get(self.comm, (link.size, 1))
        self.messages = Messages(link, self.comm, shape.timeout)
        group, place = divmod(link.rank, inner)
        members = [list(range(g * inner, (g + 1) * inner)) for g in range(groups)]
        self.rows_q, self.rows_kv = (Heads(self.messages, members[group], [pieces[r] for r in members[group]])
                                     for pieces in (shape.pieces_q, shape.pieces_kv))
        pieces_q, pieces_kv = [[within_documents(_by_position([pieces[r] for r in ranks]), shape.starts) for ranks in members]
                  for pieces in (shape.pieces_q, shape.pieces_kv)]
        self.ring = Ring(self.messages, [g * inner + place for g in range(groups)], pieces_q, pieces_kv,
                         rules_of(self._own_heads(options), shape))

    def _own_heads(self, options: Options) -> Options:
        """Slopes and sinks of the heads that this rank computes."""
        own = self.rows_q.share(self.heads[0], self.rows_q.me)
        changed = {name: getattr(options, name)[..., own] for name in ("alibi_slopes", "sinks")
                   if getattr(options, name) is not None}
        return options._replace(**changed)

    def _blocks(self, k: Tensor, v: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        return self.ring.gathered(k, v) if self.comm == "all_gather" else self.ring.around(k, v)

    def _to_heads(self, *tensors: Tensor, of: Heads) -> tuple[Tensor, ...]:
        return tensors if len(of.members) == 1 else tuple(of.to_heads(x) for x in tensors)

    def _to_rows(self, x: Tensor, of: Heads, heads: int) -> Tensor:
        return x if len(of.members) == 1 else of.to_rows(x, heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, policy: Any) -> tuple[Tensor, Tensor]:
        """out of q's type and lse of this rank's rows."""
        dtype, sinks = q.dtype, self._own_heads(self.options).sinks
        (q,), (k, v) = self._to_heads(q, of=self.rows_q), self._to_heads(k, v, of=self.rows_kv)
        out, lse = self.ring.forward(q, self._blocks(k, v), v.shape[3], policy)
        if sinks is not None:  # joins the denominator once
            logits = sinks.to(lse.dtype)[None, :, None]
            total = torch.logaddexp(lse, logits)
            out, lse = out * (lse - total).exp().nan_to_num(0.0)[..., None], total
        return tuple(self._to_rows(x, self.rows_q, self.heads[0]) for x in (out.to(dtype), lse))  # type: ignore[return-value]

    def backward(self, d_out: Tensor, saved: tuple[Tensor, ...], policy: Any) -> tuple[Tensor | None, ...]:
        """d_q, d_k, d_v and d_sinks, each of its tensor's type; d_sinks is of this rank's rows or heads alone."""
        q, k, v, out, lse = saved
        types = q.dtype, k.dtype, v.dtype
        delta = (d_out.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
        d_out, q, out, lse, delta = self._to_heads(d_out.to(q.dtype), q, out, lse, delta, of=self.rows_q)
        k, v = self._to_heads(k, v, of=self.rows_kv)
        grads = self.ring.backward((d_out, q, out, lse, delta), self._blocks(k, v), k, v, policy)
        d_q = self._to_rows(grads[0], self.rows_q, self.heads[0]).to(types[0])
        d_k, d_v = (self._to_rows(x, self.rows_kv, self.heads[1]).to(dtype) for x, dtype in zip(grads[1:], types[1:]))
        return d_q, d_k, d_v, self._d_sinks(lse, delta)

    def _d_sinks(self, lse: Tensor, delta: Tensor) -> Tensor | None:
        sinks = self._own_heads(self.options).sinks
        if sinks is None:
            return None
        d_sinks = torch.zeros(self.heads[0], dtype=lse.dtype)
        own = self.rows_q.share(self.heads[0], self.rows_q.me)
        d_sinks[own] = -((sinks.to(lse.dtype)[None, :, None] - lse).exp() * delta).sum((0, 2))
        return d_sinks


def _by_position(pieces: list[Pieces]) -> Pieces:
    return joined(sorted(piece for own in pieces for piece in own))
