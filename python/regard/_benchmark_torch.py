"""PyTorch's scaled_dot_product_attention as a row of a benchmark."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_NAME = "torch"
# Options with no word in PyTorch's function, and what they are when they do nothing.
_OWN = {"window": (-1, -1), "softcap": 0.0, "alibi_slopes": None, "sinks": None, "seqlens_q": None,
        "seqlens_kv": None, "segment_ids_q": None, "segment_ids_kv": None, "descale_q": None,
        "cu_seqlens_q": None, "cu_seqlens_kv": None, "max_seqlen_q": None, "max_seqlen_kv": None,
        "lengths": None, "lengths_kv": None, "padding": None, "page_table": None,
        "cache_batch_idx": None, "cache_leftpad": None, "shared_prefix_kv": 0,
        "k_new": None, "v_new": None, "tree_mask": None, "scales_k": None, "scales_v": None,
        "channel_scales_k": None, "k_dtype": None, "v_dtype": None, "rotary_cos": None,
        "rotary_sin": None, "rotary_interleaved": False, "hadamard": False, "positions": None,
        "descale_k": None, "descale_v": None,
        "dropout_p": 0.0, "return_lse": False, "return_scores": None}


class NotComparable(Exception):
    """Why a call does not mean the same to PyTorch."""


@dataclass
class TorchRow:
    name: str
    backward: bool
    reason: str
    kernel: str
    workers: int
    call: Callable[[], Any] | None


def torch_rows(q: Any, k: Any, v: Any, options: dict[str, Any]) -> list[TorchRow]:
    """A row for each direction that the call has; none where PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    directions = [False, True] if options.get("return_saved") else [False]
    try:
        calls = _calls(q, k, v, options)
    except NotComparable as reason:
        return [TorchRow(_NAME, backward, f"not comparable: {reason}", "", 0, None)
                for backward in directions]
    import torch

    kernel = f"scaled_dot_product_attention of PyTorch {torch.__version__.partition('+')[0]}"
    return [TorchRow(_NAME, backward, "", kernel, torch.get_num_threads(), calls[backward])
            for backward in directions]


def _calls(q: Any, k: Any, v: Any, options: dict[str, Any]) -> list[Callable[[], Any]]:
    """The forward and, with return_saved, the backward."""
    import torch

    for name, nothing in _OWN.items():
        if name in options and not _is_default(options[name], nothing):
            raise NotComparable(f"scaled_dot_product_attention has no {name}")
    tensors = [_tensor(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    if options.get("layout", "BHSD") == "BSHD":
        tensors = [x.transpose(1, 2) for x in tensors]
    query, key = tensors[0], tensors[1]
    if query.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise NotComparable(f"it does not compute in {query.dtype}")
    keywords: dict[str, Any] = {"scale": options.get("softmax_scale"),
                                "enable_gqa": query.shape[1] != key.shape[1]}
    keywords["is_causal"] = _is_causal(options, query.shape[2], key.shape[2])
    keywords["attn_mask"] = _mask(options, keywords["is_causal"])
    # PyTorch's own, also where regard.torch.install() has put another one in its place.
    attend = torch._C._nn.scaled_dot_product_attention
    inputs = [x.detach() for x in tensors]
    calls = [lambda: attend(*inputs, **keywords)]
    if options.get("return_saved"):
        calls.append(_backward_call(attend, inputs, keywords))
    return calls


def _backward_call(attend: Callable[..., Any], inputs: list[Any],
                   keywords: dict[str, Any]) -> Callable[[], Any]:
    """The gradients by autograd, of a forward that ran once; of a bias, too, as regard's."""
    import torch

    with torch.enable_grad():
        leaves = [x.detach().requires_grad_(True) for x in inputs]
        mask = keywords["attn_mask"]
        if mask is not None and mask.is_floating_point():
            mask = mask.detach().requires_grad_(True)
            out = attend(*leaves, **{**keywords, "attn_mask": mask})
            leaves.append(mask)
        else:
            out = attend(*leaves, **keywords)
    d_out = out.detach()
    return lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True)


def _is_default(value: Any, nothing: Any) -> bool:
    if isinstance(nothing, tuple):
        return isinstance(value, (tuple, list)) and tuple(value) == nothing
    return value is nothing or (nothing is not None and isinstance(value, (bool, int, float))
                                and value == nothing)


def _is_causal(options: dict[str, Any], queries: int, keys: int) -> bool:
    """is_causal for PyTorch, whose diagonal begins at the top left."""
    if not options.get("is_causal"):
        return False
    diagonal = options.get("diagonal")
    name = diagonal if isinstance(diagonal, str) else "" if diagonal is None else "an offset"
    if name == "top_left" or (queries == keys and name in ("", "bottom_right")):
        return True
    if name == "bottom_right" and queries == 1:
        return False  # the one query sees every key
    raise NotComparable("its is_causal has its diagonal at the top left")


def _mask(options: dict[str, Any], is_causal: bool) -> Any:
    given = [name for name in ("attn_mask", "attn_bias") if options.get(name) is not None]
    if not given:
        return None
    if len(given) == 2:
        raise NotComparable("it takes one mask, boolean or float")
    if is_causal:
        raise NotComparable("it takes no mask beside is_causal")
    return _tensor(options[given[0]], given[0])


def _tensor(array: Any, name: str) -> Any:
    """A tensor over the same memory."""
    import torch
    from torch.utils.dlpack import from_dlpack

    if isinstance(array, torch.Tensor):
        if array.device.type != "cpu":
            raise NotComparable(f"{name} is not on the CPU")
        return array
    try:
        if type(array).__module__.partition(".")[0] != "numpy":
            return from_dlpack(array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arrays that may not be written: none is
            if array.dtype.name == "bfloat16":  # ml_dtypes'
                return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
            return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        reason = str(error).partition("\n")[0]
        raise NotComparable(f"{name} cannot be shared with PyTorch: {reason}") from None
