"""What scripts/gpu_check_torch.py takes of PyTorch on CPU tensors, where there is none: calls return
at once, and float32 is refused as a backend without a kernel refuses."""

import contextlib
import enum
import sys
import types

__version__ = "a stand-in"
float32, float16, bfloat16 = "f32", "f16", "bf16"


def randn(*shape, dtype, device, requires_grad):
    assert device == "cpu" and max(shape) <= 256, shape
    return types.SimpleNamespace(shape=shape, dtype=dtype, requires_grad=requires_grad)


def randn_like(tensor):
    return tensor


class SDPBackend(enum.Enum):
    CUDNN_ATTENTION = FLASH_ATTENTION = EFFICIENT_ATTENTION = MATH = 0


def scaled_dot_product_attention(q, k, v, is_causal, enable_gqa):
    assert enable_gqa == (q.shape[1] != k.shape[1])
    if q.dtype == float32:
        raise RuntimeError("No available kernel. Aborting execution.\nand more lines")
    return q


def grad(out, inputs, d_out, retain_graph):
    assert all(tensor.requires_grad for tensor in inputs)


autograd = types.SimpleNamespace(grad=grad)
nn = types.ModuleType("torch.nn")
sys.modules["torch.nn"] = nn
sys.modules["torch.nn.attention"] = nn.attention = types.ModuleType("torch.nn.attention")
sys.modules["torch.nn.functional"] = nn.functional = types.ModuleType("torch.nn.functional")
nn.attention.SDPBackend, nn.attention.sdpa_kernel = SDPBackend, contextlib.nullcontext
nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
