"""The cases of test_rank_grid.py: what they are, which are refused, and the function that ranks run."""

import contextlib
import itertools
from typing import NamedTuple

import torch
from rank_programs import mesh_of
from torch.distributed.device_mesh import init_device_mesh

import regard.torch
from regard.torch._call import attend
from regard.torch._options import Options

F8 = torch.float8_e4m3fn  # q, k and v, and e5m2 of the gradient of out, beside tensors of f32
RECIPE = regard.fp8.Float8CurrentScaling()

LENGTH = 48  # of each sequence; TransformerEngine's have 4,096 positions, and windows in the same proportion
DOCUMENTS = (0, 17, 20, 48)  # of format thd
COMMS, FORMS = ("p2p", "all_gather", "a2a", "a2a+p2p"), ("bshd", "sbhd", "thd")
DTYPES = (torch.float32, torch.bfloat16, F8)
# An element's error beside 1 plus its magnitude: test_context_parallel's of the forward.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


class Model(NamedTuple):
    heads: int = 4
    heads_kv: int = 4
    dim: int = 16
    dim_v: int = 16
    is_causal: bool = False
    window: tuple[int, int] = (-1, -1)
    bias: str | None = None     # its shape, of batch, heads and positions
    softmax: str = "vanilla"    # "off-by-one": a sink of 0; "learnable": sinks with gradients


# Masks are no_mask and causal; of packed sequences these are called padding and padding_causal.
MODELS = {
    "mha_causal": Model(is_causal=True),
    "mha": Model(),
    "mha_causal_window": Model(is_causal=True, window=(6, 0)),
    "mha_window": Model(window=(6, 6)),
    "gqa_causal": Model(8, 2, is_causal=True),
    "gqa": Model(8, 4),
    "gqa_causal_window": Model(8, 2, is_causal=True, window=(2, 0)),
    "gqa_window": Model(8, 2, window=(6, 6)),
    "mqa_causal": Model(8, 1, is_causal=True),
    "mla_causal": Model(dim=24, dim_v=16, is_causal=True),
    "mla": Model(dim=24, dim_v=16),
    "mla_causal_window": Model(dim=24, dim_v=16, is_causal=True, window=(6, 0)),
    "mla_window": Model(dim=24, dim_v=16, window=(6, 6)),
    "mla_wide_causal": Model(8, 8, 48, 32, is_causal=True),
    "wide_heads_causal": Model(dim=256, dim_v=256, is_causal=True),
    "off_by_one": Model(8, 2, is_causal=True, softmax="off-by-one"),
    "learnable": Model(8, 2, is_causal=True, softmax="learnable"),
    "learnable_window": Model(is_causal=True, window=(2, 0), softmax="learnable"),
    "bias_1hss": Model(bias="1hss", is_causal=True),
    "bias_bhss": Model(bias="bhss"),
    "bias_11ss": Model(8, 2, bias="11ss", is_causal=True),
    "bias_111s": Model(8, 2, bias="111s", is_causal=True),
    "bias_b1ss": Model(dim=24, dim_v=16, bias="b1ss"),
}


class Case(NamedTuple):
    model: str
    form: str
    comm: str
    dtype: torch.dtype


CASES = [Case(*words) for words in itertools.product(MODELS, FORMS, COMMS, DTYPES)]


def name_of(case):
    return "-".join((case.model, case.form, case.comm, str(case.dtype).removeprefix("torch.")))


def size_of(case):
    """Groups of two ranks need four."""
    return 4 if case.comm == "a2a+p2p" else 2


def refusal_of(case):
    """Words of the error; None where the case is computed."""
    return "attn_mask (a tensor) must be None in context_parallel" if MODELS[case.model].bias else None


def _tensors(model, case):
    """q, k, v and d_out of the whole, [batch, heads, positions, head_dim]; format thd has one packed entry."""
    numbers = torch.Generator().manual_seed(LENGTH * model.heads + model.dim)
    batch = 1 if case.form == "thd" else 2
    shapes = ((model.heads, model.dim), (model.heads_kv, model.dim), (model.heads_kv, model.dim_v),
              (model.heads, model.dim_v))
    dtype = torch.float32 if case.dtype is F8 else case.dtype
    return [torch.randn(batch, heads, LENGTH, dim, generator=numbers).to(dtype) for heads, dim in shapes]


def _as_rounded(x, backward):
    """What x in 8 bits stands for, with the recipe's scale of the whole."""
    state = RECIPE.new_state(backward)
    state.step(x.abs().max().item())
    codes = regard.fp8.quantize(x, state.form.name, state.scale)
    return regard.fp8.dequantize(codes, state.form.name, state.descale)


def _options(model):
    bias = None
    if model.bias is not None:
        sizes = {"1": 1, "b": 2, "h": model.heads, "s": LENGTH}
        bias = torch.zeros([sizes[letter] for letter in model.bias])
    sinks = None
    if model.softmax != "vanilla":
        sinks = torch.linspace(-1, 2, model.heads) if model.softmax == "learnable" else torch.zeros(model.heads)
        sinks.requires_grad_(model.softmax == "learnable")
    return Options(is_causal=model.is_causal, window_left=model.window[0], window_right=model.window[1],
                   attn_bias=bias, sinks=sinks)


def _in_form(x, form):
    """A tensor whose memory has the format's order, as [batch, heads, positions, head_dim]."""
    order = {"bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3), "thd": (0, 2, 1, 3)}[form]
    stored = x.permute(order).contiguous()
    return stored.permute([order.index(axis) for axis in range(4)])


def _alone(model, tensors, starts):
    """out, gradients and those of sinks of one rank: of packed sequences one after the other."""
    leaves, options = [x.clone().requires_grad_() for x in tensors[:3]], _options(model)
    parts = [attend(*(x[:, :, a:b] for x in leaves), options)[0] for a, b in zip(starts, starts[1:])]
    out = torch.cat(parts, 2)
    out.backward(tensors[3])
    return [out.detach(), *(x.grad for x in leaves)], options.sinks


def _over_ranks(model, case, mesh, tensors):
    """The same of this rank, whose parts have the format's order."""
    scope = {"layout": "zigzag"}
    if case.form == "thd":
        scope = {"layout": "per_document", "cu_seqlens": DOCUMENTS}
    parts = [_in_form(regard.torch.context_parallel_shard(x, mesh, 2, **scope), case.form) for x in tensors]
    leaves, options = [x.detach().requires_grad_() for x in parts[:3]], _options(model)
    eight_bits = regard.torch.fp8_autocast(RECIPE) if case.dtype is F8 else contextlib.nullcontext()
    with regard.torch.context_parallel(mesh, comm=case.comm, **scope), eight_bits:
        out = attend(*leaves, options)[0]
    out.backward(parts[3])
    whole = [regard.torch.context_parallel_unshard(x.detach(), mesh, 2, **scope)
             for x in (out, *(x.grad for x in leaves))]
    return whole, options.sinks


def _worst(got, want):
    assert got.shape == want.shape and got.dtype == want.dtype
    error = ((got - want).abs().double() / (1 + want.abs().double())).max().item()
    return error / TOLERANCE[got.dtype]


def _run(case, mesh):
    model = MODELS[case.model]
    tensors = _tensors(model, case)
    starts = DOCUMENTS if case.form == "thd" else (0, LENGTH)
    try:
        found, sinks = _over_ranks(model, case, mesh, tensors)
    except regard.torch.ArgumentError as error:
        return str(error)
    if case.dtype is F8:
        tensors = [_as_rounded(x, backward=n == 3) for n, x in enumerate(tensors)]
    expected, sinks_alone = _alone(model, tensors, starts)
    errors = [_worst(got, want) for got, want in zip(found, expected)]
    if model.softmax == "learnable":
        summed = sinks.grad.clone()
        torch.distributed.all_reduce(summed)
        largest = sinks_alone.grad.abs().max()
        errors.append((summed - sinks_alone.grad).abs().max().item() / largest.item() / TOLERANCE[tensors[0].dtype])
    assert all(error == error for error in errors)
    return max(errors)


def run_all(rank, size):
    """{name: error over the tolerance, or the refusal} of every case of that number of ranks."""
    meshes = {comm: mesh_of(size, comm) if size == 4 else init_device_mesh("cpu", (size,)) for comm in COMMS}
    return {name_of(case): _run(case, meshes[case.comm]) for case in CASES if size_of(case) == size}
