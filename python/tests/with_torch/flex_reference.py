"""FlexAttention as PyTorch computes it without a compiler: score_mod and mask_mod of every element, by vmap."""

import math

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

_DIMS = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))


def vectorized(function, with_score):
    for dims in _DIMS:
        function = torch.vmap(function, in_dims=((0,) if with_score else ()) + dims)
    return function


def places(shape):
    return [torch.arange(extent) for extent in shape]


def apply_score_mod(score_mod, scores):
    with TransformGetItemToIndex():
        return vectorized(score_mod, True)(scores, *places(scores.shape))


def apply_mask_mod(mask_mod, shape):
    with TransformGetItemToIndex():
        return vectorized(mask_mod, False)(*places(shape)).expand(shape)


def flex_attention(query, key, value, score_mod=None, mask_mod=None, scale=None):
    """out and lse of [B,H,S,D] tensors, as torch._higher_order_ops.flex_attention.math_attention has them;
    a row that sees nothing is 0."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1).expand(query.shape[0], -1, -1, -1) for x in (key, value))
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(working) @ key.to(working).transpose(-2, -1)
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    edited = scores if score_mod is None else apply_score_mod(score_mod, scores)
    if mask_mod is not None:
        edited = torch.where(apply_mask_mod(mask_mod, scores.shape), edited, -math.inf)
    hidden = (edited == -math.inf).all(-1, keepdim=True)
    probs = edited.masked_fill(hidden, 0.0).softmax(-1).masked_fill(hidden, 0.0)
    lse = edited.masked_fill(hidden, 0.0).logsumexp(-1).masked_fill(hidden[..., 0], -math.inf)
    return (probs @ value.to(probs.dtype)).to(query.dtype), lse
