"""Attention as an ONNX graph.

    model = regard.onnx.export_attention("b1 hq8 hkv2 sq128 skv128 d64 f32 causal mask lens=kv")
    onnx.save(model, "attention.onnx")

The default is a graph of plain operators of opset 17; fused=True is one Attention operator of opset
23. Batch and sequence lengths are symbolic, heads and head dimensions fixed. Inputs have the names
of regard.attention's arguments; outputs are out and, where the case has `lse`, lse.
"""

from __future__ import annotations

from typing import Any

import numpy

from . import _core
from ._onnx_graph import Graph, Inputs, Problem

__all__ = ["export_attention"]


def _scores(graph: Graph, problem: Problem) -> str:
    """Scores [B,Hq,Sq,Skv] after scale, softcap and bias, before the mask."""
    q, k = graph.wide("q"), graph.wide("k")
    transposed = graph.add("Transpose", k, perm=[0, 1, 3, 2])
    product = graph.add("MatMul", graph.grouped(q, problem.head_dim_qk), transposed)
    product = graph.split_groups(product, graph.extent("k", 2))
    scores = graph.add("Mul", product, graph.number(problem.softmax_scale))
    if problem.softcap:
        cap = graph.number(problem.softcap)
        scores = graph.add("Mul", graph.add("Tanh", graph.add("Div", scores, cap)), cap)
    if problem.has("attn_bias"):
        scores = graph.add("Add", scores, graph.wide("attn_bias"))
    if problem.has("alibi"):
        scores = graph.add("Add", scores, graph.alibi())
    return scores


def _softmax(graph: Graph, problem: Problem, scores: str) -> tuple[str, str]:
    """The probabilities (0 in a row that sees nothing), and the scores with the sink's appended."""
    keys = graph.extent("k", 2)
    if problem.has("sinks"):
        scores = graph.add("Concat", scores, graph.sink_scores(), axis=3)
    probs = graph.add("Softmax", scores, axis=3)
    if problem.has("sinks"):
        probs = graph.add("Slice", probs, graph.integers([0]), keys, graph.integers([3]))
    dead = graph.add("IsNaN", probs)
    return graph.add("Where", dead, graph.number(0), probs), scores


def _lse(graph: Graph, problem: Problem, scores: str) -> None:
    top = graph.add("ReduceMax", scores, axes=[3], keepdims=1)
    top = graph.add("Where", graph.add("IsInf", top), graph.number(0), top)
    weights = graph.add("Exp", graph.add("Sub", scores, top))
    total = graph.add("ReduceSum", weights, graph.integers([3]), keepdims=1)
    lse = graph.add("Add", graph.add("Log", total), top)
    if problem.has("seqlens_q"):  # a row past its length has no sink either
        lse = graph.add("Where", graph.rows_within(), lse, graph.number(float("-inf")))
    graph.add("Squeeze", lse, graph.integers([3]), output="lse")
    graph.output("lse", ["batch", problem.num_heads_q, "seqlen_q"], wide=True)


def _decomposed(problem: Problem) -> Any:
    graph = Graph(problem, opset=17)
    scores = _scores(graph, problem)
    allowed = graph.allowed(is_causal=True)
    if allowed is not None:
        scores = graph.add("Where", allowed, scores, graph.number(float("-inf")))
    probs, scores = _softmax(graph, problem, scores)
    keys_in_groups = graph.grouped_probs(probs)
    out = graph.split_groups(graph.add("MatMul", keys_in_groups, graph.wide("v")),
                             graph.integers([problem.head_dim_v]))
    graph.write_out(out)
    if problem.has("lse"):
        _lse(graph, problem, scores)
    return graph.model("regard_attention")


def _fused(problem: Problem) -> Any:
    for feature in ("sinks", "lse"):
        if problem.has(feature):
            raise ValueError(f"fused (True): the Attention operator of opset 23 has no {feature}; "
                             "expected fused=False")
    if problem.softmax_scale <= 0:
        raise ValueError(f"softmax_scale ({problem.softmax_scale}) of a fused graph must be above "
                         "0, or ONNX Runtime refuses it; expected fused=False")
    graph = Graph(problem, opset=23)
    operator_causal = problem.is_causal and problem.diagonal == "tl" and problem.window_left < 0
    mask = graph.allowed(is_causal=not operator_causal)
    has_bias = problem.has("attn_bias") or problem.has("alibi")
    if problem.softcap and has_bias:
        raise ValueError("fused (True): the Attention operator's order of softcap and a bias "
                         "differs among its implementations; expected fused=False")
    bias = graph.cast("attn_bias") if problem.has("attn_bias") else None
    if problem.has("alibi"):
        bias = graph.alibi() if bias is None else graph.add("Add", bias, graph.alibi())
    if bias is not None:
        mask = bias if mask is None else graph.add("Where", mask, bias, graph.number(float("-inf")))
    inputs = [graph.wide(name) for name in ("q", "k", "v")]
    if mask is not None:  # the operator needs every extent in full
        mask = graph.broadcast_scores(mask)
        inputs.append(mask)
    out = graph.add("Attention", *inputs, scale=problem.softmax_scale, softcap=problem.softcap,
                    is_causal=int(operator_causal))
    if graph.masks:  # rows that see nothing are NaN in some engines and types
        out = graph.add("Where", graph.add("IsNaN", out), graph.number(0), out)
    graph.write_out(out)
    return graph.model("regard_attention")


def export_attention(case: Any, k: Any = None, v: Any = None, *, fused: bool = False,
                     **options: Any) -> Any:
    """An onnx.ModelProto of a case ("hq8 sq128 d64 causal diag=tl"), or of a call: q, k and v with
    regard.attention's options, layout="BSHD" among them.

    Of the arrays only types, heads and head dimensions are used. A ValueError states what a graph
    cannot have: dropout, packed and paged tensors.
    """
    if not isinstance(fused, bool):
        raise TypeError(f"fused ({fused!r}) must be True or False")
    if isinstance(case, str):
        selection, inputs = _core.explain(case, **options), Inputs(offset=_offset_of(case))
    else:
        selection = _core.explain(case, k, v, **options)
        inputs = _inputs_of(selection.to_dict()["params"]["features"], options)
    problem = Problem(selection.to_dict()["params"], inputs)
    return _fused(problem) if fused else _decomposed(problem)


def _inputs_of(features: list[str], options: dict[str, Any]) -> Inputs:
    """What a call's options say about the graph's inputs and the problem does not contain."""
    slopes = options.get("alibi_slopes")
    return Inputs(
        offset=int(options["diagonal"]) if "diagonal_offset" in features else 0,
        is_bshd=options.get("layout") == "BSHD",
        bias="attn_bias" if options.get("attn_bias") is not None else "attn_mask",
        slopes_by_batch=slopes is not None and numpy.ndim(slopes) == 2)


def _offset_of(case: str) -> int:
    """The N of diag=N: a number of the call, not of the problem."""
    for word in case.split():
        name, _, value = word.partition("=")
        if name == "diag" and value.lstrip("-").isdigit():
            return int(value)
    return 0
