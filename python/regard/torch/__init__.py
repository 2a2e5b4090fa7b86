"""regard for PyTorch: a drop-in for scaled_dot_product_attention, and the operators behind it.

    out = regard.torch.scaled_dot_product_attention(query, key, value, is_causal=True)

    out = regard.torch.varlen_attn(query, key, value, cu_seq, cu_seq, longest, longest)  # packed

    with regard.torch.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        ...
    with regard.torch.exportable():
        program = torch.export.export(model, example)  # plain ATen operators

    out = regard.torch.attention_with_kvcache(q, k, v, seqlens_kv=lengths, k_new=k_new, v_new=v_new)

torch.ops.regard.attention is a torch.library operator: autograd, autocast, vmap, torch.compile and
torch.export work with it. So are kvcache_attention and kvcache_append_attention there, without autograd.
"""

from . import _kvcache, _ops
from ._block_mask import and_masks, create_block_mask, or_masks
from ._context_parallel import context_parallel
from ._enabled import (
    Enabled,
    cudnn_sdp_enabled,
    flash_sdp_enabled,
    math_sdp_enabled,
    mem_efficient_sdp_enabled,
)
from ._flex import AuxOutput, flex_attention
from ._fp8 import autocast, fp8_autocast
from ._function_trace import TracingError
from ._install import install, uninstall
from ._kvcache import attention_with_kvcache
from ._packed import AuxRequest, varlen_attn
from ._padded import attention_padded
from ._scopes import ArgumentError, exportable, sdpa_kernel
from ._sdpa import can_use, explain, scaled_dot_product_attention
from ._shards import context_parallel_shard, context_parallel_unshard

_ops.register()
_kvcache.register()

__all__ = [
    "ArgumentError",
    "AuxOutput",
    "AuxRequest",
    "Enabled",
    "TracingError",
    "and_masks",
    "attention_padded",
    "attention_with_kvcache",
    "autocast",
    "can_use",
    "context_parallel",
    "context_parallel_shard",
    "context_parallel_unshard",
    "create_block_mask",
    "cudnn_sdp_enabled",
    "explain",
    "exportable",
    "flash_sdp_enabled",
    "flex_attention",
    "fp8_autocast",
    "install",
    "math_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "or_masks",
    "scaled_dot_product_attention",
    "sdpa_kernel",
    "uninstall",
    "varlen_attn",
]
