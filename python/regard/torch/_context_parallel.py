"""context_parallel: scaled_dot_product_attention over a sequence whose parts lie on several ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _core
from . import _install
from ._context_transformers import Masks
from ._fp8 import active, fp8_autocast
from ._group import TIMEOUT, Communicator, ranks_of
from ._options import Options, is_packed
from ._rank_call import Call, Shape, plan
from ._rank_fp8 import RoundedCall, Rounding, check_scope
from ._scopes import (
    ArgumentError,
    call_policy,
    close_ranks,
    drop_in_errors,
    is_exporting,
    open_ranks,
)
from ._shards import check_layout, length_of

_MAX_PLANS = 64  # that a scope keeps
# Of each group: what was measured, by topology.
_measured: WeakKeyDictionary[Any, dict[tuple[int, int], tuple[float, float, float, float]]] = WeakKeyDictionary()
COMMS = ("auto", "p2p", "all_gather", "a2a", "a2a+p2p")


class _Recorded(torch.autograd.Function):
    """A call of all ranks; each has its own rows of out and of the gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, call: Call,
                backends: str) -> tuple[Tensor, Tensor]:
        policy = call_policy(backends)
        tensors = call.tensors(q, k, v)
        with drop_in_errors:
            out, lse = call.forward(*tensors, policy)
        if any(ctx.needs_input_grad[:4]):
            ctx.save_for_backward(*tensors, out, lse)
            ctx.call, ctx.policy = call, policy
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor | None) -> tuple[Any, ...]:
        with drop_in_errors:
            d_q, d_k, d_v, d_sinks = ctx.call.backward(d_out, ctx.saved_tensors, ctx.policy)
        if d_sinks is not None:
            d_sinks = d_sinks.to(ctx.call.options.sinks.dtype)
        return d_q, d_k, d_v, d_sinks, None, None


def _check_call(q: Tensor, options: Options) -> None:
    """Refuses by name what ranks cannot compute together: every call in the scope comes here."""
    if options.attn_mask is not None or options.attn_bias is not None:
        raise ArgumentError("attn_mask (a tensor) must be None in context_parallel: no rank has the columns of "
                            "the other ranks; is_causal, windows and cu_seqlens of the scope say what is hidden")
    given = [name for name in ("seqlens_q", "seqlens_kv") if getattr(options, name) is not None]
    if given:
        raise ArgumentError(f"{given[0]} (a tensor) must be None in context_parallel: cu_seqlens of the scope "
                            "states the lengths of documents")
    if is_packed(options):
        raise ArgumentError("cu_seqlens_q (a tensor) must be None in context_parallel: cu_seqlens of the scope "
                            "states where documents of the whole sequence begin")
    if is_exporting():
        raise ArgumentError("exportable() (open) must be closed in context_parallel: messages have no graph of "
                            "plain operators")
    if torch._C._functorch.peek_interpreter_stack() is not None or (
            torch.autograd.forward_ad._current_level >= 0):
        raise ArgumentError("torch.func and forward mode (active) must be left out in context_parallel")
    if q.device.type != "cpu":
        raise ArgumentError(f"device of query ({q.device}) must be cpu in context_parallel")
    if (scope := active()) is not None:
        check_scope(scope, q)


def _check_network(network: Any) -> tuple[float, float, float, float] | None:
    """(latency, bandwidth) for all messages, or two more numbers for those between groups, as four numbers."""
    if network is None:
        return None
    numbers = tuple(float(x) for x in network)
    if len(numbers) not in (2, 4) or not all(0 <= x < float("inf") for x in numbers) or not all(numbers[1::2]):
        raise ArgumentError(f"network ({network!r}) must be seconds a message and bytes a second, of groups these and "
                            "those between groups")
    return (numbers[0], numbers[1], numbers[-2], numbers[-1])


class context_parallel:  # noqa: N801 - PyTorch's name
    """A scope in which scaled_dot_product_attention attends to the keys of all ranks of `mesh`.

    query [B, Hq, S of this rank, E], key and value [B, H, S of this rank, E] are the parts of a sequence
    as context_parallel_shard cuts it; the result [B, Hq, S of this rank, Ev] is this rank's rows of what
    one rank computes with the whole sequence. is_causal counts in the whole sequence, dropout draws the
    mask of one rank (with rank 0's seed). Both PyTorch's function and regard.torch's work so, in
    this thread, and so do models of Transformers with attn_implementation="sdpa" or "regard". Gradients
    are recorded: backward may run outside of the scope, on every rank.

    mesh: a DeviceMesh of one dimension; of two, groups and ranks of each; or a ProcessGroup.
    comm, by TransformerEngine's names of cp_comm_type: "p2p" sends keys and values around a ring while
    others are computed, "all_gather" gathers them first, "a2a" divides heads instead of the sequence,
    "a2a+p2p" does so within the groups of a two-dimensional mesh, with a ring among groups; "auto" takes the
    one that is predicted to be the fastest over `network`: seconds a message and bytes a second, of a
    two-dimensional mesh these and those between groups; None measures it once for each group, in the first
    call. explain() states both. layout and cu_seqlens: context_parallel_shard's; with
    cu_seqlens each document attends only to itself. timeout: seconds that a message may take.

        >>> import torch, torch.distributed as dist, regard.torch
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> q = k = v = torch.ones(1, 2, 5, 64)
        >>> with regard.torch.context_parallel(dist.group.WORLD, layout="zigzag"):
        ...     out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> dist.destroy_process_group()

    Scopes nest; the innermost holds. In torch.compile a call is a graph break. Raises TypeError or
    regard.torch.ArgumentError for an argument, on every rank where ranks disagree; calls raise RuntimeError with
    rank and step where another rank ended or sent nothing for `timeout` seconds.

    More: `python -m regard docs distributed`.
    """

    def __init__(self, mesh: Any, comm: str = "auto", layout: str = "contiguous", cu_seqlens: Any = None,
                 timeout: float = TIMEOUT, network: Sequence[float] | None = None) -> None:
        if comm not in COMMS:
            raise ArgumentError(f"comm ({comm!r}) must be one of {', '.join(map(repr, COMMS))}")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout ({timeout!r}) must be a number of seconds")
        if not 0 < timeout < float("inf"):
            raise ArgumentError(f"timeout ({timeout!r}) must be a positive number of seconds")
        self._starts = check_layout(layout, cu_seqlens)
        ranks = ranks_of(mesh)
        if comm == "a2a+p2p" and ranks.topology[0] == 1:
            raise ArgumentError("mesh (of one group) must be a DeviceMesh of two dimensions, groups and the ranks "
                                "of each, with comm='a2a+p2p'")
        self.comm, self.layout, self.timeout = comm, layout, float(timeout)
        self._network = _check_network(network)
        self._link, self._topology = Communicator(ranks.group), ranks.topology
        self.has_documents = self._starts is not None
        self._masks: list[Masks] = []
        self._plans: dict[Any, _core.RankPlan] = {}
        self._last: _core.RankPlan | None = None

    def __enter__(self) -> context_parallel:
        self._masks.append(Masks())
        _install.begin_scope()
        open_ranks(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        close_ranks(self)
        _install.end_scope()
        self._masks.pop().undo()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: Options,
               backends: str) -> tuple[Tensor, Tensor]:
        """This rank's rows of out and lse; every rank must call it."""
        if "torch._dynamo" in sys.modules:  # frames in here must not be compiled, either
            result: tuple[Tensor, Tensor] = torch._dynamo.disable(self._attend)(q, k, v, options, backends)
            return result
        return self._attend(q, k, v, options, backends)

    setattr(attend, "_torchdynamo_disable", True)  # torch.compiler.disable imports all of torch._dynamo
    setattr(attend, "_torchdynamo_disable_msg", "context_parallel sends and receives messages")

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, options: Options,
                backends: str) -> tuple[Tensor, Tensor]:
        _check_call(q, options)
        shape, words = self._agreed(q, k, v, options, backends)
        scope = active()
        if scope is None:
            call = Call(self._link, self._plan(shape, words, q, k, v, options), shape, options)
        else:
            call = self._rounded(scope, q, k, v, (shape, words), options, backends)
        out, lse = _Recorded.apply(q, k, v, options.sinks, call, backends)
        return out, lse

    def _rounded(self, scope: fp8_autocast, q: Tensor, k: Tensor, v: Tensor, agreed: tuple[Shape, str],
                 options: Options, backends: str) -> Call:
        """A call with tensors of 8 bits."""
        shape, words = agreed
        rounding = Rounding(scope, self._link, self.timeout)
        with drop_in_errors:
            rounded = rounding.rounded({"q": q, "k": k, "v": v}, call_policy(backends))
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        keywords = {**rounding.keywords(rounded, q.dtype), "out": out}
        made = self._plan(shape, words, rounded["q"].tensor, rounded["k"].tensor, rounded["v"].tensor, options, keywords)
        return RoundedCall(self._link, made, shape, options, rounding, rounded, out)

    def _plan(self, shape: Shape, words: str, q: Tensor, k: Tensor, v: Tensor, options: Options,
              more: dict[str, Any] | None = None) -> _core.RankPlan:
        key = shape._replace(starts=None, seed=0), words
        made = self._plans.get(key)
        if made is None:
            made = plan(self._link, shape, q, k, v, options, more)
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = made
        self._last = made
        return made

    def _agreed(self, q: Tensor, k: Tensor, v: Tensor, options: Options, backends: str) -> tuple[Shape, str]:
        """What all ranks compute, and the words that describe it; raises on every rank where they describe different
        calls."""
        shapes = " ".join(f"{name}[{x.shape[0]},{x.shape[1]},*,{x.shape[3]}]" for name, x in (("q", q), ("k", k), ("v", v)))
        set_options = {name: value for name, value in options._asdict().items()
                       if not isinstance(value, Tensor) and value != Options._field_defaults[name]}
        tensors = [name for name in ("sinks", "alibi_slopes") if getattr(options, name) is not None]
        words = (f"{shapes} {q.dtype} comm={self.comm} layout={self.layout} cu_seqlens={self._starts} "
                 f"network={self._network} "
                 f"topology={self._topology} {set_options} {tensors} regard {_core.__version__}")
        if (scope := active()) is not None:
            words += f" fp8_autocast={scope.recipe!r}"
        seed = 0 if options.rng is None else int(options.rng[0]) & 0xFFFFFFFFFFFFFFFF
        needs_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, options.sinks))
        numbers = (q.shape[2], k.shape[2], seed - (1 << 64) if seed >> 63 else seed, needs_grad | 2 * self._must_measure())
        with drop_in_errors:
            answers = _core.agree_ranks(self._link, words, numbers, timeout=self.timeout, policy=call_policy(backends))
        length_q, length_kv = (length_of([each[n] for each in answers], self.layout, self._starts, f"positions of {what}")
                               for n, what in enumerate(("query", "key")))
        return Shape(self.comm, self.layout, self._topology, length_q, length_kv, self._starts, self.timeout,
                     answers[0][2] & 0xFFFFFFFFFFFFFFFF, *self._network_of(any(each[3] & 2 for each in answers)),
                     needs_grad=any(each[3] & 1 for each in answers)), words

    def _must_measure(self) -> bool:
        """Whether the choice among algorithms needs times that no scope of this group has measured."""
        return self._measures() and self._topology not in _measured.get(self._link.group, {})

    def _measures(self) -> bool:
        return self.comm == "auto" and self._network is None and self._link.size > 1

    def _network_of(self, must_measure: bool) -> tuple[tuple[float, float, float, float] | None, bool]:
        """Latencies and bandwidths, and whether they were measured; the same on every rank."""
        if not self._measures():
            return self._network, False
        found = _measured.setdefault(self._link.group, {})
        if must_measure:  # on any rank
            found[self._topology] = _core.measure_network(self._link, topology=self._topology, timeout=self.timeout)
        return found[self._topology], True

    def explain(self) -> str:
        """The plan of the last call: the network that times are predicted for (assumed, given or measured), and what
        each algorithm sends, holds and takes."""
        if self._last is None:
            raise RuntimeError("explain() must follow a call of attention in the scope")
        return self._last.explain()
