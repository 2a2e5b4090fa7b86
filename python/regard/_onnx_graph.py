"""Builds the graphs of regard.onnx node by node."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

from ._core import __version__

_TYPES = {"f32": TensorProto.FLOAT, "f64": TensorProto.DOUBLE, "f16": TensorProto.FLOAT16,
          "bf16": TensorProto.BFLOAT16}
_ACCEPTED = frozenset({
    "causal", "window_left", "window_right", "diagonal_bottom_right", "diagonal_offset",
    "diagonal_per_sequence", "softcap", "attn_mask", "attn_bias", "alibi", "sinks", "segment_ids",
    "seqlens_q", "seqlens_kv", "lse", "gqa", "head_dims_differ", "seqlen_q_greater_kv",
    "non_finite_behind_mask"})
_DIMS = ("batch", "num_heads_q", "seqlen_q", "seqlen_kv")


class Inputs(NamedTuple):
    """Properties of a graph's inputs that the problem does not contain."""

    offset: int = 0  # of the diagonal, a constant of the graph
    is_bshd: bool = False  # q, k, v and out are [batch, positions, heads, head_dim]
    bias: str = "attn_bias"  # its name: a float attn_mask is one, too
    slopes_by_batch: bool = False  # alibi_slopes are [batch, heads]


class Problem:
    """The AttentionParams of a graph, without extents."""

    def __init__(self, params: dict[str, Any], inputs: Inputs) -> None:
        self._params = params
        self._features = frozenset(params["features"])
        for feature in sorted(self._features - _ACCEPTED):
            raise ValueError(f"{feature} has no ONNX graph; accepted are "
                             f"{', '.join(sorted(_ACCEPTED))}")
        dtype = params["dtype_q"]
        if dtype not in _TYPES or params["dtype_k"] != dtype or params["dtype_out"] != dtype:
            raise ValueError(f"dtypes q={dtype} kv={params['dtype_k']} out={params['dtype_out']} "
                             f"must be one of {', '.join(_TYPES)}, the same for all")
        self.type = _TYPES[dtype]
        self.wide_type = TensorProto.DOUBLE if dtype == "f64" else TensorProto.FLOAT
        self.bias_type = _TYPES[params["dtype_bias"]]
        self.num_heads_q, self.num_heads_kv = params["num_heads_q"], params["num_heads_kv"]
        self.head_dim_qk, self.head_dim_v = params["head_dim_qk"], params["head_dim_v"]
        self.softmax_scale = float(params["softmax_scale"])
        self.softcap = float(params["softcap"])
        self.is_causal = params["window_right"] == 0
        self.window_left, self.window_right = params["window_left"], params["window_right"]
        self.inputs = inputs
        self.diagonal = "tl"
        for feature, name in (("diagonal_bottom_right", "br"), ("diagonal_offset", "offset"),
                              ("diagonal_per_sequence", "seq")):
            if self.has(feature):
                self.diagonal = name

    def has(self, feature: str) -> bool:
        return feature in self._features

    def dims(self, name: str) -> list[Any]:
        """The extents of attn_mask or attn_bias: symbolic, fixed, or 1 where it broadcasts."""
        text = self._params["mask_dims" if name == "attn_mask" else "bias_dims"]  # "1,H,Sq,Skv"
        full = [self.num_heads_q if dim == "num_heads_q" else dim for dim in _DIMS]
        return [1 if word == "1" else dim for word, dim in zip(text.split(","), full)]


class Graph:
    """A graph under construction; every method that adds nodes returns the name of a value."""

    def __init__(self, problem: Problem, opset: int) -> None:
        self.problem, self.opset, self.masks = problem, opset, 0
        self._nodes: list[Any] = []
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        heads = {"q": problem.num_heads_q, "k": problem.num_heads_kv, "v": problem.num_heads_kv}
        depth = {"q": problem.head_dim_qk, "k": problem.head_dim_qk, "v": problem.head_dim_v}
        for name in ("q", "k", "v"):
            rows = "seqlen_q" if name == "q" else "seqlen_kv"
            shape = ["batch", heads[name], rows, depth[name]]
            self._input(name, problem.type, self._in_layout(shape))
        # [B,H,S,D] whatever the layout.
        self._tensors = {name: self._turned(name) for name in ("q", "k", "v")}

    def _in_layout(self, shape: list[Any]) -> list[Any]:
        return [shape[dim] for dim in (0, 2, 1, 3)] if self.problem.inputs.is_bshd else shape

    def _turned(self, value: str) -> str:
        if not self.problem.inputs.is_bshd:
            return value
        return self.add("Transpose", value, perm=[0, 2, 1, 3])

    def _input(self, name: str, elements: int, shape: list[Any]) -> str:
        if name not in self._inputs:
            self._inputs[name] = helper.make_tensor_value_info(name, elements, shape)
        return name

    def add(self, op: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        key = (op, inputs, tuple(sorted((k, str(v)) for k, v in attributes.items())))
        if output is None and key in self._known:
            return self._known[key]
        name = output or f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        self._known[key] = name
        return name

    def _constant(self, array: Any) -> str:
        name = f"c_{array.dtype}_{'_'.join(str(x) for x in array.flatten())}".replace("-", "m")
        name = f"{name}_{array.ndim}"
        self._constants.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def number(self, value: float) -> str:
        wide = numpy.float64 if self.problem.wide_type == TensorProto.DOUBLE else numpy.float32
        return self._constant(numpy.array(value, wide))

    def integers(self, values: list[int]) -> str:
        return self._constant(numpy.array(values, numpy.int64))

    def wide(self, name: str) -> str:
        """q, k, v or a bias in the type of the computation: f32 for 16 bits."""
        if name == "attn_bias":
            return self.cast(name)
        return self._cast(self._tensors[name], self.problem.type)

    def cast(self, name: str) -> str:
        """attn_bias, sinks or alibi_slopes, declared as an input, in the same type."""
        problem = self.problem
        if name == "attn_bias":
            elements, shape = problem.bias_type, problem.dims(name)
            return self._cast(self._input(problem.inputs.bias, elements, shape), elements)
        shape = [problem.num_heads_q]
        if name == "alibi_slopes" and problem.inputs.slopes_by_batch:
            shape = ["batch", problem.num_heads_q]
        return self._cast(self._input(name, TensorProto.FLOAT, shape), TensorProto.FLOAT)

    def _cast(self, name: str, elements: int) -> str:
        if elements == self.problem.wide_type:
            return name
        return self.add("Cast", name, to=self.problem.wide_type)

    def write_out(self, value: str) -> None:
        """Makes [B,Hq,Sq,Dv] in the type of the computation the output of the graph."""
        problem = self.problem
        value = self._turned(value)
        if problem.type == problem.wide_type:
            self.add("Identity", value, output="out")
        else:
            self.add("Cast", value, to=problem.type, output="out")
        self.output("out", self._in_layout(
            ["batch", problem.num_heads_q, "seqlen_q", problem.head_dim_v]))

    def extent(self, name: str, dim: int) -> str:
        """int64 [1], of q, k or v as [B,H,S,D]."""
        shape = self.add("Shape", self._tensors[name])
        return self.add("Slice", shape, self.integers([dim]), self.integers([dim + 1]),
                        self.integers([0]))

    def grouped(self, q: str, depth: int) -> str:
        """[B,Hq,S,D] as [B,Hkv,G*S,D], so that K and V need not be repeated for a group's heads."""
        if self.problem.num_heads_q == self.problem.num_heads_kv:
            return q
        return self.add("Reshape", q, self.integers([0, self.problem.num_heads_kv, -1, depth]))

    def grouped_probs(self, probs: str) -> str:
        if self.problem.num_heads_q == self.problem.num_heads_kv:
            return probs
        parts = [self.integers([0, self.problem.num_heads_kv, -1]), self.extent("k", 2)]
        return self.add("Reshape", probs, self.add("Concat", *parts, axis=0))

    def split_groups(self, value: str, last: str) -> str:
        """[B,Hkv,G*S,N] as [B,Hq,S,N]; `last` is N."""
        if self.problem.num_heads_q == self.problem.num_heads_kv:
            return value
        parts = [self.integers([0, self.problem.num_heads_q]), self.extent("q", 2), last]
        return self.add("Reshape", value, self.add("Concat", *parts, axis=0))

    def _positions(self, name: str, axes: list[int]) -> str:
        """0, 1, ... along the sequence of q or k, int64, with dimensions of 1 at `axes`."""
        end = self.add("Squeeze", self.extent(name, 2), self.integers([0]))
        zero, one = (self._constant(numpy.array(n, numpy.int64)) for n in (0, 1))
        return self.add("Unsqueeze", self.add("Range", zero, end, one), self.integers(axes))

    def _rows(self) -> str:
        return self._positions("q", [0, 1, 3])

    def _keys(self) -> str:
        return self._positions("k", [0, 1, 2])

    def _lengths(self, name: str) -> str:
        """seqlens_q, seqlens_kv or diagonal as int64 [B,1,1,1]."""
        elements = TensorProto.INT64 if name == "diagonal" else TensorProto.INT32
        self._input(name, elements, ["batch"])
        wide = name
        if elements != TensorProto.INT64:
            wide = self.add("Cast", name, to=TensorProto.INT64)
        return self.add("Unsqueeze", wide, self.integers([1, 2, 3]))

    def distance(self) -> str:
        """Key's position less row's on the diagonal, int64 [1|B,1,Sq,Skv]."""
        plain = self.add("Sub", self._keys(), self._rows())
        if self.problem.diagonal == "tl":
            return plain
        if self.problem.diagonal == "offset":
            shift = self.integers([self.problem.inputs.offset])
        elif self.problem.diagonal == "seq":
            shift = self._lengths("diagonal")
        else:
            ends = [self._lengths(lens) if self.problem.has(lens) else self.extent(tensor, 2)
                    for lens, tensor in (("seqlens_kv", "k"), ("seqlens_q", "q"))]
            shift = self.add("Sub", *ends)
        return self.add("Sub", plain, shift)

    def alibi(self) -> str:
        distance = self.add("Cast", self.add("Abs", self.distance()), to=self.problem.wide_type)
        axes = [2, 3] if self.problem.inputs.slopes_by_batch else [0, 2, 3]
        slopes = self.add("Unsqueeze", self.cast("alibi_slopes"), self.integers(axes))
        return self.add("Neg", self.add("Mul", slopes, distance))

    def rows_within(self) -> str:
        return self.add("Less", self._rows(), self._lengths("seqlens_q"))

    def allowed(self, is_causal: bool) -> str | None:
        """bool, True where a row may see a key; None where every row sees every key."""
        problem, rules = self.problem, []
        if problem.has("attn_mask"):
            rules.append(self._input("attn_mask", TensorProto.BOOL, problem.dims("attn_mask")))
        right = problem.window_right
        if right > 0 or right == 0 and is_causal:
            rules.append(self.add("LessOrEqual", self.distance(), self.integers([right])))
        if problem.window_left >= 0:
            rules.append(self.add("GreaterOrEqual", self.distance(),
                                  self.integers([-problem.window_left])))
        if problem.has("seqlens_kv"):
            rules.append(self.add("Less", self._keys(), self._lengths("seqlens_kv")))
        if problem.has("seqlens_q"):
            rules.append(self.rows_within())
        if problem.has("segment_ids"):
            rules.append(self._same_segment())
        self.masks = len(rules)
        allowed = None
        for rule in rules:
            allowed = rule if allowed is None else self.add("And", allowed, rule)
        return allowed

    def _same_segment(self) -> str:
        q = self._input("segment_ids_q", TensorProto.INT32, ["batch", "seqlen_q"])
        kv = self._input("segment_ids_kv", TensorProto.INT32, ["batch", "seqlen_kv"])
        return self.add("Equal", self.add("Unsqueeze", q, self.integers([1, 3])),
                        self.add("Unsqueeze", kv, self.integers([1, 2])))

    def sink_scores(self) -> str:
        """The sinks as one key more, [B,Hq,Sq,1]."""
        sinks = self.add("Unsqueeze", self.cast("sinks"), self.integers([0, 2, 3]))
        parts = [self.extent("q", 0), self.integers([self.problem.num_heads_q]),
                 self.extent("q", 2), self.integers([1])]
        return self.add("Expand", sinks, self.add("Concat", *parts, axis=0))

    def broadcast_scores(self, mask: str) -> str:
        """The mask with every extent of [B,Hq,Sq,Skv]."""
        parts = [self.extent("q", 0), self.integers([self.problem.num_heads_q]),
                 self.extent("q", 2), self.extent("k", 2)]
        return self.add("Expand", mask, self.add("Concat", *parts, axis=0))

    def output(self, name: str, shape: list[Any], wide: bool = False) -> None:
        elements = self.problem.wide_type if wide else self.problem.type
        self._outputs.append(helper.make_tensor_value_info(name, elements, shape))

    def model(self, name: str) -> Any:
        """The model, checked, its shapes inferred strictly."""
        graph = helper.make_graph(self._nodes, name, list(self._inputs.values()), self._outputs,
                                  list(self._constants.values()))
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, producer_name="regard",
                                  producer_version=__version__,
                                  ir_version=8 if self.opset == 17 else 11)
        onnx.checker.check_model(model, full_check=True)
        return model
