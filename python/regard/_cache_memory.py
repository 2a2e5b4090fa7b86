"""The memory of a cache: NumPy arrays, or PyTorch's tensors. Rows may be given as either.

Rows move within a cache as bits, arrays of integers over the same memory: NumPy's on a host, which has no
type of PyTorch's bfloat16 without ml_dtypes, PyTorch's on a CUDA device.
"""

import contextlib
import importlib
import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._core import attention, built_with_cuda

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


def _detached(name: str, tensor: Any, device: Any = None) -> Any:
    """device: where a tensor may lie besides a CPU."""
    if tensor.device.type != "cpu" and tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; expected memory of a CPU"
                         f"{'' if device is None else f' or of {device}'}")
    if tensor.requires_grad and _torch().is_grad_enabled():
        raise TypeError(f"{name} requires a gradient, which a cache does not record; pass "
                        f"{name}.detach(), or call within torch.no_grad()")
    return tensor.detach()


class _HostMemory:
    """What memory of a CPU of both kinds has beside its rows."""

    dtype: Any

    def full(self, shape: tuple[int, ...], number: float) -> Any:
        """Scales of rows."""
        return np.full(shape, number, np.float32)

    def nobody(self, shape: tuple[int, ...]) -> Any:
        """Queries, of which `shape` has none, for a call that appends."""
        return np.zeros(shape, np.float64 if str(self.dtype).endswith("float64") else np.float32)

    def attend(self, *tensors: Any, **keywords: Any) -> Any:
        """regard.attention on this memory."""
        return attention(*tensors, **keywords)


class NumpyMemory(_HostMemory):
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


class TorchMemory(_HostMemory):
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

    def bits(self, rows: Any) -> Any:
        """A NumPy array over the memory of the rows."""
        return rows.view(self._bits).numpy()

    def of_bits(self, bits: Any) -> Any:
        """Rows whose memory that is."""
        return _torch().from_numpy(bits).view(self.dtype)


class DeviceMemory(TorchMemory):
    """The same of a CUDA device, on which nothing here waits but what copies rows to the host."""

    def __init__(self, dtype: Any, device: Any) -> None:
        super().__init__(dtype)
        self.device = device

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return _torch().zeros(shape, dtype=self._bits, device=self.device).view(self.dtype)

    def full(self, shape: tuple[int, ...], number: float) -> Any:
        return _torch().full(shape, number, dtype=_torch().float32, device=self.device)

    def nobody(self, shape: tuple[int, ...]) -> Any:
        torch = _torch()
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def attend(self, q: Any, k: Any, v: Any, **keywords: Any) -> Any:
        if not _is_tensor(q) or q.device != k.device:
            where = q.device if _is_tensor(q) else type(q).__name__
            raise ValueError(f"q ({where}) must be a tensor of the cache's device, {k.device}")
        by_torch = importlib.import_module("regard.torch._device")
        return by_torch.attention(_detached("q", q, k.device), k, v, **keywords)

    def rounded(self, name: str, given: Any) -> Any:
        if _is_tensor(given):
            given = _detached(name, given, self.device)
        else:
            given = super().rounded(name, given)
        # The caller may write to pinned memory while a copy still reads it; other memory is staged.
        return given.to(self.device, self.dtype, non_blocking=not given.is_pinned())

    def bits(self, rows: Any) -> Any:
        """A tensor of integers over the memory of the rows."""
        return rows.view(self._bits)

    def of_bits(self, bits: Any) -> Any:
        return bits.view(self.dtype)


def on_host(rows: Any) -> NDArray[Any]:
    """Numbers of a device, for which the host waits, or of a host as they are."""
    return NumpyMemory("f32").rounded("rows", rows.cpu()) if _is_tensor(rows) else rows


def places_in(rows: Any, *numbers: NDArray[np.int64]) -> tuple[Any, ...]:
    """Numbers as indices of bits."""
    return tuple(_torch().from_numpy(x) for x in numbers) if _is_tensor(rows) else numbers


def copy_of(rows: Any) -> Any:
    """A copy of bits, without gaps."""
    if _is_tensor(rows):
        return rows.clone(memory_format=_torch().contiguous_format)
    return rows.copy(order="C")


def numbers_of(name: str, given: Any) -> NDArray[Any]:
    """Rows of any kind and float type as float32 of NumPy's."""
    return NumpyMemory("f32").rounded(name, given)


def rounded_like(q: Any, name: str, given: Any) -> Any:
    """Rows of any kind and float type as the kind and type of q, and where it lies."""
    if _is_tensor(q):
        return memory_of(q.dtype, None if q.device.type == "cpu" else q.device).rounded(name, given)
    return numbers_of(name, given).astype(np.asarray(q).dtype, copy=False)


def _device_of(device: Any) -> Any:
    """The device of PyTorch's that it names, one of CUDA; raises for any other."""
    torch = _torch()
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device ({device!r}) must be a device of PyTorch's, or None") from error
    if named.type != "cuda":
        raise ValueError(f"device ({device!r}) must be a CUDA device, or None for memory of a CPU")
    if not built_with_cuda():
        raise ValueError(f"device ({device!r}) must be None: this build of regard has no CUDA support")
    return named if named.index is not None else torch.device("cuda", torch.cuda.current_device())


def memory_of(dtype: Any, device: Any = None) -> NumpyMemory | TorchMemory:
    """PyTorch's for a torch.dtype, on the device if one is named, NumPy's for a name; raises for any
    other."""
    torch = _torch()
    is_torch = torch is not None and isinstance(dtype, torch.dtype)
    if device is None:
        return TorchMemory(dtype) if is_torch else NumpyMemory(dtype)
    if not is_torch:
        raise ValueError(f"dtype ({dtype!r}) must be one of PyTorch's where device ({device!r}) is given")
    return DeviceMemory(dtype, _device_of(device))
