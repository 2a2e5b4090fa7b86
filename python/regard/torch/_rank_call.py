"""One attention of all ranks: what the library computes, with messages that a process group sends."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from .. import _core
from .._trace import recorded_activities
from ._group import MAX_MESSAGE, Communicator
from ._options import Options, native_keywords
from ._scopes import ArgumentError, drop_in_errors


class Shape(NamedTuple):
    """What a call computes over all ranks, alike on each of them."""

    comm: str
    layout: str
    topology: tuple[int, int]  # groups, and ranks of each
    length_q: int
    length_kv: int
    starts: list[int] | None   # of documents
    timeout: float
    seed: int                  # of dropout
    network: tuple[float, float, float, float] | None  # seconds and bytes a second, in a group and between groups
    is_measured: bool          # the network
    needs_grad: bool           # on any rank


def keywords_of(options: Options, seed: int, starts: list[int] | None) -> dict[str, Any]:
    """The options as keywords of regard.attention. Causality is a window, which ranks see as one."""
    slopes = options.alibi_slopes
    if slopes is not None and slopes.dim() == 2 and starts is not None:  # [batch, heads]: a row for each document
        options = options._replace(alibi_slopes=slopes.repeat_interleave(len(starts) - 1, 0))
    left, right = options.window_left, options.window_right
    if options.is_causal:
        right = 0 if right < 0 else min(right, 0)
    keywords = native_keywords(options._replace(is_causal=False, window_left=left, window_right=right, rng=None))
    if options.dropout_p:
        keywords["seed"] = seed
    return keywords


def check_heads(comm: str, topology: tuple[int, int], heads: int) -> None:
    """Raises where ranks cannot divide the heads of query."""
    count = {"a2a": topology[0] * topology[1], "a2a+p2p": topology[1]}.get(comm, 1)
    if heads < count:
        raise ArgumentError(f"heads of query ({heads}) must be at least as many as the ranks that divide them, {count}, "
                            f"with comm={comm!r}")


def plan(link: Communicator, shape: Shape, q: Tensor, k: Tensor, v: Tensor, options: Options,
         more: dict[str, Any] | None = None) -> _core.RankPlan:
    """The plan of a call that all ranks agreed on. more: keywords of regard.attention beside the options'."""
    check_heads(shape.comm, shape.topology, q.shape[1])
    # In groups of one rank each the ring is all that is left.
    comm = "p2p" if shape.comm == "a2a+p2p" and shape.topology[1] == 1 else shape.comm
    with drop_in_errors:
        return _core.plan_ranks(
            q.detach(), k.detach(), v.detach(), rank=link.rank, ranks=link.size,
            seqlens=(shape.length_q, shape.length_kv), layout=shape.layout, cu_seqlens=shape.starts or [], comm=comm,
            topology=shape.topology, timeout=shape.timeout, max_bytes=MAX_MESSAGE, needs_grad=shape.needs_grad,
            network=shape.network, is_measured=shape.is_measured,
            keywords={**keywords_of(_without_grad(options), shape.seed, shape.starts), **(more or {})})


def _without_grad(options: Options) -> Options:
    """The same with tensors that record nothing."""
    sinks, slopes = options.sinks, options.alibi_slopes  # others are refused, but for the seed
    return options._replace(sinks=None if sinks is None else sinks.detach(),
                            alibi_slopes=None if slopes is None else slopes.detach())


class Call:
    """One call of all ranks."""

    def __init__(self, link: Communicator, plan: _core.RankPlan, shape: Shape, options: Options,
                 more: dict[str, Any] | None = None) -> None:
        self.link, self.plan, self.options = link, plan, options
        self._keywords = {**keywords_of(_without_grad(options), shape.seed, shape.starts), **(more or {})}

    def tensors(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What is computed with, and kept for a backward."""
        return q, k, v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, policy: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """out, of q's type, and lse of this rank's rows. more: keywords of this direction."""
        with recorded_activities("forward", self.link.rank) as activities:
            found: tuple[Tensor, Tensor] = _core.attention_ranks(
                self.plan, self.link, q.detach(), k.detach(), v.detach(), {**self._keywords, "policy": policy, **more},
                activities)
        return found

    def backward(self, d_out: Tensor, saved: tuple[Tensor, ...], policy: Any, **more: Any) -> tuple[Tensor | None, ...]:
        """d_q, d_k, d_v and d_sinks, which is what this rank's rows add to it: the sum over ranks is the gradient, as
        it is of every parameter that each rank has."""
        with recorded_activities("backward", self.link.rank) as activities:
            found: tuple[Tensor | None, ...] = _core.attention_ranks_backward(
                self.plan, self.link, d_out, tuple(x.detach() for x in saved),
                {**self._keywords, "policy": policy, **more}, activities)
        return found
