"""The memory of a cache: NumPy arrays, or PyTorch's tensors. Rows may be given as either.

Rows move within a cache as bits, NumPy arrays over the same memory: NumPy has no 16-bit type of
PyTorch's bfloat16 without ml_dtypes.
"""

import contextlib
import importlib
import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
          "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "i8": "int8", "u4": "uint8",
          "int4": "uint8"}
_NUMPY = ("f64", "f32", "f16", "i8", "u4", "int4")
_BITS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}

_HUGE_PAGE, _LINE = 2 << 20, 64


def zeros_in_huge_pages(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros that begin at a multiple of 2 MB, in huge pages where the system grants them: decode reads
    caches of all kinds faster from them (docs/python.md). Less than two of them, and on systems
    without them, zeros that begin at a multiple of 64 bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < 2 * _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        raw = np.zeros(size + _LINE, np.uint8)
        begin = -raw.ctypes.data % _LINE
        return raw[begin:begin + size].view(dtype).reshape(shape)
    try:  # of this process alone: what is shared has huge pages by another rule
        memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for a cache's {size} bytes") from error
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    begin = -raw.ctypes.data % _HUGE_PAGE
    return raw[begin:begin + size].view(dtype).reshape(shape)


def _torch() -> Any:
    """The module where something has imported it, or None."""
    return sys.modules.get("torch")


def _is_tensor(x: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(x, torch.Tensor)


def _detached(name: str, tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}; expected memory of a CPU")
    if tensor.requires_grad and _torch().is_grad_enabled():
        raise TypeError(f"{name} requires a gradient, which a cache does not record; pass "
                        f"{name}.detach(), or call within torch.no_grad()")
    return tensor.detach()


class NumpyMemory:
    """NumPy arrays of a type that is named as in a case: f64, f32, f16, bf16, f8e4m3, f8e5m2, i8 or u4
    ("int4"), whose codes of 4 bits stand two in a byte."""

    def __init__(self, dtype: Any) -> None:
        if dtype not in _NAMES:
            raise ValueError(f"dtype ({dtype!r}) must be one of {', '.join(_NAMES)}, or PyTorch's dtype "
                             "of such a type, torch.uint8 for u4")
        try:
            owner: Any = np if dtype in _NUMPY else importlib.import_module("ml_dtypes")
        except ImportError as error:
            raise ImportError(f"dtype {dtype!r} needs the package ml_dtypes; {', '.join(_NUMPY)} need "
                              "NumPy alone") from error
        self.dtype = np.dtype(getattr(owner, _NAMES[dtype]))
        self.per_element = 2 if _NAMES[dtype] == "uint8" else 1

    def zeros(self, shape: tuple[int, ...]) -> NDArray[Any]:
        return zeros_in_huge_pages(shape, self.dtype)

    def rounded(self, name: str, given: Any) -> NDArray[Any]:
        """Rows of any kind and float type as this memory's."""
        if _is_tensor(given):
            tensor = _detached(name, given)
            in_numpy = str(tensor.dtype).removeprefix("torch.") in ("float64", "float32", "float16")
            given = tensor.numpy() if in_numpy else tensor.float().numpy()
        return np.asarray(given).astype(self.dtype, copy=False)

    def bits(self, rows: NDArray[Any]) -> NDArray[Any]:
        """A NumPy array over the memory of the rows."""
        return rows

    def of_bits(self, bits: NDArray[Any]) -> NDArray[Any]:
        """Rows whose memory that is."""
        return bits


class TorchMemory:
    """CPU tensors of a dtype of PyTorch's; torch.uint8 holds u4, whose codes of 4 bits stand two in a
    byte."""

    def __init__(self, dtype: Any) -> None:
        accepted = [f"torch.{name}" for name in dict.fromkeys(_NAMES.values())]
        if str(dtype) not in accepted:
            raise ValueError(f"dtype ({dtype!r}) must be one of {', '.join(accepted)}")
        self.dtype, self._bits = dtype, getattr(_torch(), _BITS[dtype.itemsize])
        self.per_element = 2 if dtype == _torch().uint8 else 1

    def zeros(self, shape: tuple[int, ...]) -> Any:
        bits = zeros_in_huge_pages(shape, _BITS[self.dtype.itemsize])
        return _torch().from_numpy(bits).view(self.dtype)

    def rounded(self, name: str, given: Any) -> Any:
        """Rows of any kind and float type as this memory's."""
        if _is_tensor(given):
            return _detached(name, given).to(self.dtype)
        array = np.asarray(given)
        if array.dtype.isbuiltin == 2:  # of ml_dtypes, which PyTorch does not read
            array = array.astype(np.float32)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        return _torch().tensor(array, device="cpu").to(self.dtype)

    def bits(self, rows: Any) -> NDArray[Any]:
        """A NumPy array over the memory of the rows."""
        made: NDArray[Any] = rows.view(self._bits).numpy()
        return made

    def of_bits(self, bits: NDArray[Any]) -> Any:
        """Rows whose memory that is."""
        return _torch().from_numpy(bits).view(self.dtype)


def numbers_of(name: str, given: Any) -> NDArray[Any]:
    """Rows of any kind and float type as float32 of NumPy's."""
    return NumpyMemory("f32").rounded(name, given)


def rounded_like(q: Any, name: str, given: Any) -> Any:
    """Rows of any kind and float type as the kind and type of q."""
    if _is_tensor(q):
        return TorchMemory(q.dtype).rounded(name, given)
    return numbers_of(name, given).astype(np.asarray(q).dtype, copy=False)


def memory_of(dtype: Any) -> NumpyMemory | TorchMemory:
    """PyTorch's for a torch.dtype, NumPy's for a name; raises for any other."""
    torch = _torch()
    is_torch = torch is not None and isinstance(dtype, torch.dtype)
    return TorchMemory(dtype) if is_torch else NumpyMemory(dtype)
