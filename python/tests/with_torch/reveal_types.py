"""The types of results, which test_types.py has mypy print: each call and, behind #, its type."""

import numpy
import torch

import regard
import regard.torch
from regard.flash_attn import flash_attn_func, flash_attn_varlen_func

x = numpy.zeros((1, 1, 2, 4), numpy.float32)
t = torch.zeros(1, 1, 2, 4)
flag = bool(x.sum())

reveal_type(regard.attention(x, x, x))  # Array
reveal_type(regard.attention(x, x, x, return_lse=True))  # tuple[Array, Array]
reveal_type(regard.attention(x, x, x, return_scores="probs"))  # tuple[Array, Array]
reveal_type(regard.attention(x, x, x, return_saved=True))  # tuple[Array, Saved]
reveal_type(regard.attention(x, x, x, return_lse=True, return_scores="scaled", return_saved=True, is_causal=True))  # tuple[Array, Array, Array, Saved]
reveal_type(regard.attention(x, x, x, return_lse=flag))  # Any
reveal_type(regard.attention(t, t, t, return_lse=False, backends=["flash", "math"]))  # Tensor
reveal_type(regard.attention(t, t, t, return_lse=True, return_saved=True))  # tuple[Tensor, Tensor, Saved]
reveal_type(regard.attention(t, t, t, return_lse=True, return_scores="edited"))  # tuple[Tensor, Tensor, Tensor]
reveal_type(regard.merge_states([(x, x), (x, x)]))  # tuple[Array, Array]
reveal_type(regard.merge_states([(t, t), (t, t)]))  # tuple[Tensor, Tensor]
reveal_type(regard.explain(x, x, x))  # Selection
reveal_type(regard.torch.varlen_attn(t, t, t, t, t, 1, 1))  # Tensor
reveal_type(regard.torch.varlen_attn(t, t, t, t, t, 1, 1, return_aux=regard.torch.AuxRequest(lse=True)))  # Tensor | tuple[Tensor, Tensor]
reveal_type(flash_attn_func(t, t, t, 0.0, None, True))  # Tensor
reveal_type(flash_attn_func(t, t, t, return_attn_probs=True))  # tuple[Tensor, Tensor, Tensor | None]
reveal_type(flash_attn_varlen_func(t, t, t, t, t, 1, 1))  # Tensor
reveal_type(flash_attn_varlen_func(t, t, t, t, t, 1, 1, return_attn_probs=True))  # tuple[Tensor, Tensor, Tensor | None]
