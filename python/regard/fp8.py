"""Floats of 8 bits: exact conversions, and the recipes by which training finds their scales.

    codes = regard.fp8.quantize(x, "f8e4m3", scale=448 / abs(x).max())
    recipe = regard.fp8.DelayedScaling()
    state = recipe.new_state()          # one tensor's
    state.step(abs(x).max())            # after each step
    state.scale                         # for the next one

Recipes have TransformerEngine's names, defaults and formulas. A tensor is multiplied by its scale
before it is rounded, and by the descale, 1 / scale, when it is read.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._fp8_codec import E4M3, E5M2, TABLES, Format, encode, format_of, philox_words

__all__ = [
    "DelayedScaling",
    "Float8BlockScaling",
    "Float8CurrentScaling",
    "MXFP8BlockScaling",
    "Recipe",
    "TensorState",
    "dequantize",
    "quantize",
]

_F32_MAX = float(np.finfo(np.float32).max)


def _as_array(x: Any, name: str) -> tuple[NDArray[Any], bool]:
    """The numbers of an array, a list, a number or a torch tensor, and whether it was a tensor."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        wide = x.dtype == torch.float64
        return x.to(torch.float64 if wide else torch.float32).numpy(), True
    array = np.asarray(x)
    if array.dtype.kind in "OSUmMc":
        raise TypeError(f"dtype of {name} ({array.dtype}) must be of real numbers")
    return array, False


def _scales(scale: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    scales = np.asarray(_as_array(scale, name)[0], np.float64)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ValueError(f"{name} ({scale!r}) must be finite and more than 0")
    try:
        fits = np.broadcast_shapes(scales.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"shape of {name} {scales.shape} must broadcast to the array's, {shape}")
    return scales


def _multiplied(x: NDArray[Any], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Float32 numbers, and narrower ones, are multiplied in float32, as devices multiply them."""
    if x.dtype == np.float64:
        return x * by
    with np.errstate(over="ignore"):
        return (x.astype(np.float32) * by.astype(np.float32)).astype(np.float64)


def quantize(x: Any, dtype: str, scale: ArrayLike = 1.0, saturate: bool = True, *,
             seed: int | None = None, offset: int = 0) -> Any:
    """The codes of x * scale in 'f8e4m3' or 'f8e5m2', rounded once.

    `x` is any array of real numbers, and the codes are uint8 of its shape; a torch tensor gives one of
    torch's float8 types. `scale` is a number, or an array that broadcasts to x's shape: one for each
    row, or for each block of a reshaped x. The product is a float32, or float64 where x is. What
    lies beyond the largest number (448, and 57344) becomes that, infinities included; with saturate=False
    it becomes an infinity, or NaN in f8e4m3, which has none. NaN stays NaN.

    Without a seed numbers are rounded to nearest, ties to even. With one they are rounded up with the
    probability of the part that is cut off, in steps of 2^-32: element n (in C order) draws word
    n & 3 of Philox4x32 with 7 rounds of the key (seed_lo, seed_hi ^ offset_hi) and the counter
    (n >> 2, n >> 34, 0x66703872, offset_lo).

        >>> import numpy as np, regard
        >>> regard.fp8.quantize(np.float32([1, 1.0625, 1.1875, 1000]), "f8e4m3")
        array([ 56,  56,  58, 126], dtype=uint8)

    Raises ValueError for a dtype or scale that is not as above, and TypeError for x that holds no numbers.
    """
    form = format_of(dtype)
    array, is_tensor = _as_array(x, "x")
    scaled = _multiplied(array, _scales(scale, "scale", array.shape))
    draws = None if seed is None else philox_words(seed, offset, array.size)
    codes = encode(scaled, form, saturate, draws)
    return _tensor_of(codes, form) if is_tensor else codes


def dequantize(codes: Any, dtype: str, descale: ArrayLike = 1.0) -> Any:
    """What codes of 'f8e4m3' or 'f8e5m2' stand for, times `descale`: float32, exact where that is 1.

    `codes` are uint8, an array of ml_dtypes' float8 types or a tensor of torch's; `descale` is a number, or
    an array that broadcasts to the codes' shape.

        >>> import numpy as np, regard
        >>> regard.fp8.dequantize(np.uint8([0x38, 0x7e, 0x01]), "f8e4m3", descale=2.0)
        array([2.00000e+00, 8.96000e+02, 3.90625e-03], dtype=float32)

    Raises ValueError for a dtype or descale that is not as above, and TypeError for other codes.
    """
    form = format_of(dtype)
    torch: Any = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(codes, torch.Tensor)
    array = codes.detach().cpu().view(torch.uint8).numpy() if is_tensor else np.asarray(codes)
    if array.dtype != np.uint8:
        if array.dtype.name not in ("float8_e4m3fn", "float8_e5m2"):
            raise TypeError(f"dtype of codes ({array.dtype}) must be uint8 or a float8 type")
        array = array.view(np.uint8)
    factor = _scales(descale, "descale", array.shape).astype(np.float32)
    values = TABLES[form.name][array] * factor
    return torch.from_numpy(values) if is_tensor else values


def _tensor_of(codes: NDArray[np.uint8], form: Format) -> Any:
    torch = sys.modules["torch"]
    return torch.from_numpy(codes).view(
        torch.float8_e4m3fn if form is E4M3 else torch.float8_e5m2)


def _checked_amax(amax: Any) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        array = np.asarray(_as_array(amax, "amax")[0], np.float32)
    bad = np.isnan(array) | (array < 0)
    if bad.any():
        raise ValueError(f"amax ({amax!r}) must be at least 0 and no NaN")
    return array


class TensorState:
    """One tensor's place in a recipe, from Recipe.new_state(). Plain data: it can be pickled.

    scale         what the tensor is multiplied by before it is rounded: a float, or an array where the
                  recipe has one for each block
    amax_history  the largest magnitudes of earlier steps, where the recipe keeps them: element 0 is 0,
                  the place of the step at hand; then from the oldest to the last
    """

    def __init__(self, recipe: Recipe, backward: bool = False) -> None:
        self.recipe = recipe
        self.form = recipe.format_of(backward)
        self.scale: Any = 1.0
        length = recipe.amax_history_len if isinstance(recipe, DelayedScaling) else 0
        self._history = np.zeros(length, np.float32)

    @property
    def amax_history(self) -> NDArray[np.float32]:
        return self._history.copy()

    @property
    def descale(self) -> Any:
        """What codes are multiplied by: 1 / scale, a float32."""
        inverse = np.float32(1) / np.asarray(self.scale, np.float32)
        return float(inverse) if inverse.ndim == 0 else inverse

    def step(self, amax: Any) -> None:
        """Takes the largest magnitude of a step, and sets the scale that follows from it.

        `amax` is a number, or where the recipe has a scale for each block an array of them. Raises
        ValueError for one that is negative or NaN, and leaves the state as it was.
        """
        self.scale, self._history = self.recipe._step(self, _checked_amax(amax))

    def __repr__(self) -> str:
        return f"TensorState({self.recipe!r}, {self.form.name}, scale={self.scale!r})"


def _finite_scale(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(np.isinf(scale), np.float32(_F32_MAX), scale)


def _current_scale(amax: NDArray[np.float32], form: Format, power_of_two: bool) -> Any:
    """TransformerEngine's compute_scale_from_amax: 1 for 0 and infinity."""
    with np.errstate(divide="ignore", over="ignore"):
        scale = _finite_scale(np.float32(form.max) / amax)
    if power_of_two:
        scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    scale = np.where((amax == 0) | np.isinf(amax), np.float32(1), scale)
    return float(scale) if scale.ndim == 0 else scale


def _check_format(fp8_format: Any, known: tuple[str, ...]) -> str:
    if fp8_format not in known:
        words = " or ".join(repr(word) for word in known)
        raise ValueError(f"fp8_format ({fp8_format!r}) must be {words}")
    return str(fp8_format)


class Recipe(ABC):
    """What the recipes share. kind is what regard's selection reads of one, beside the formats and the
    layout of the scales: neither scales nor histories are part of a selection."""

    kind: ClassVar[str]
    fp8_format: str

    def format_of(self, backward: bool = False) -> Format:
        """f8e4m3, and f8e5m2 of gradients where fp8_format is HYBRID."""
        return E5M2 if backward and self.fp8_format == "HYBRID" else E4M3

    def new_state(self, backward: bool = False) -> TensorState:
        """The state of one tensor; of a gradient with backward=True."""
        return TensorState(self, backward)

    @abstractmethod
    def _step(self, state: TensorState, amax: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        """The state's next scale and history."""

    # What one training step has noted of the tensors of each call, for advance(): filled by
    # regard.torch.fp8_autocast.
    def _calls(self) -> dict[Any, Any]:
        noted: dict[Any, Any] = self.__dict__.setdefault("_noted", {})
        return noted

    def advance(self) -> None:
        """Ends a training step: every tensor that fp8_autocast quantised since the last call takes its
        largest magnitude. Does nothing where the recipe keeps no history."""

    def _parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in self._parameters().items())})"


class DelayedScaling(Recipe):
    """A scale for a tensor, from the largest magnitudes of earlier steps.

    state.step(amax) does what TransformerEngine does after a step, in this order: amax is written to
    element 0 of the history; the step's amax is the largest of the history ("max"), or element 0
    ("most_recent"); the history moves by one place, so that element 0 comes last, and element 0 becomes 0;
    scale = max / amax / 2^margin, with 448 or 57344 for max. The scale stays where amax is 0 or infinite,
    and is the largest float32 where it would be infinite.

        >>> import regard
        >>> state = regard.fp8.DelayedScaling(amax_history_len=3).new_state()
        >>> state.step(4.0)
        >>> state.scale, state.amax_history.tolist()
        (112.0, [0.0, 0.0, 4.0])

    Raises ValueError for a parameter that is not as above, with its name.
    """

    kind = "delayed"

    def __init__(self, margin: int = 0, fp8_format: str = "HYBRID", amax_history_len: int = 1024,
                 amax_compute_algo: str = "max", reduce_amax: bool = True) -> None:
        if isinstance(margin, bool) or not isinstance(margin, (int, float)) or not math.isfinite(margin):
            raise ValueError(f"margin ({margin!r}) must be a finite number")
        if not -126 <= margin <= 126:
            raise ValueError(f"margin ({margin!r}) must lie between -126 and 126: scales are float32")
        if isinstance(amax_history_len, bool) or not isinstance(amax_history_len, int) or (
                amax_history_len < 1):
            raise ValueError(f"amax_history_len ({amax_history_len!r}) must be an integer of at least 1")
        if amax_compute_algo not in ("max", "most_recent"):
            raise ValueError(f"amax_compute_algo ({amax_compute_algo!r}) must be 'max' or 'most_recent'")
        if not isinstance(reduce_amax, bool):
            raise ValueError(f"reduce_amax ({reduce_amax!r}) must be True or False")
        self.margin = margin
        self.fp8_format = _check_format(fp8_format, ("HYBRID", "E4M3"))
        self.amax_history_len = amax_history_len
        self.amax_compute_algo = amax_compute_algo
        self.reduce_amax = reduce_amax

    def _step(self, state: TensorState, amax: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        if amax.ndim != 0:
            raise ValueError(f"shape of amax {amax.shape} must be (): a tensor has one scale")
        history = state.amax_history
        history[0] = max(history[0], amax)
        found = history.max() if self.amax_compute_algo == "max" else history[0]
        history = np.roll(history, -1)
        history[0] = 0
        if not 0 < found < np.inf:
            return state.scale, history
        with np.errstate(over="ignore", under="ignore"):
            scale = np.float32(state.form.max) / found / np.float32(2.0**self.margin)
        if scale == 0:  # a tiny quotient: codes would be lost, and no descale undoes it
            scale = np.finfo(np.float32).tiny
        return float(_finite_scale(np.asarray(scale, np.float32))), history

    def advance(self) -> None:
        for states in self._calls().values():
            states.step()


class Float8CurrentScaling(Recipe):
    """A scale for a tensor, from its own largest magnitude: max / amax, or the power of two below it.

    state.step(amax) takes that of the tensor at hand; there is no history. The scale of a tensor of zeros is
    1, and so is that of an infinite amax.

        >>> import regard
        >>> state = regard.fp8.Float8CurrentScaling().new_state(backward=True)
        >>> state.step(7.0)
        >>> state.scale
        8192.0

    Raises ValueError for a parameter that is not as above, with its name.
    """

    kind = "current"

    def __init__(self, fp8_format: str = "HYBRID", use_power_2_scales: bool = False) -> None:
        self.fp8_format = _check_format(fp8_format, ("HYBRID", "E4M3"))
        self.use_power_2_scales = bool(use_power_2_scales)

    def _step(self, state: TensorState, amax: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        if amax.ndim != 0:
            raise ValueError(f"shape of amax {amax.shape} must be (): a tensor has one scale")
        return _current_scale(amax, state.form, self.use_power_2_scales), state.amax_history


class _Blocks(Recipe):
    """A scale for each block; of an array [..., rows, columns] of `block` rows and columns."""

    def amax_of(self, x: Any, backward: bool = False) -> NDArray[np.float32]:
        """The largest magnitude of each block of x [..., rows, columns]; the last ones may be smaller."""
        array = np.abs(np.asarray(_as_array(x, "x")[0], np.float32))
        rows, columns = self.block(backward)
        if array.ndim < 2:
            raise ValueError(f"rank of x ({array.ndim}) must be at least 2, [..., rows, columns]")
        for axis, size in ((-2, rows), (-1, columns)):
            starts = np.arange(0, array.shape[axis], size)
            if array.shape[axis]:
                array = np.maximum.reduceat(array, starts, axis=axis)
        return array

    @abstractmethod
    def block(self, backward: bool = False) -> tuple[int, int]:
        """Rows and columns of a block."""

    def spread(self, scales: Any, shape: tuple[int, ...], backward: bool = False) -> Any:
        """The scales of blocks as one for each element of an array of `shape`."""
        rows, columns = self.block(backward)
        spread = np.repeat(np.repeat(np.asarray(scales), rows, axis=-2), columns, axis=-1)
        return spread[..., :shape[-2], :shape[-1]]


class MXFP8BlockScaling(_Blocks):
    """OCP's MXFP8: a power of two for each 32 elements of a row.

    The descale is amax / 448 (57344) rounded up to a power of two, an E8M0 number of 2^-127 to 2^127, as
    TransformerEngine rounds it; the scale is its inverse.

        >>> import regard
        >>> recipe = regard.fp8.MXFP8BlockScaling()
        >>> state = recipe.new_state()
        >>> state.step([[448.0, 449.0]])
        >>> state.scale.tolist()
        [[1.0, 0.5]]

    Raises ValueError for a parameter that is not as above, with its name.
    """

    kind = "mxfp8"

    def __init__(self, margin: int = 0, fp8_format: str = "E4M3") -> None:
        if margin != 0:
            raise ValueError(f"margin ({margin!r}) must be 0: the power of two leaves none")
        self.margin = 0
        self.fp8_format = _check_format(fp8_format, ("E4M3", "HYBRID"))

    def block(self, backward: bool = False) -> tuple[int, int]:
        return 1, 32

    def _step(self, state: TensorState, amax: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        with np.errstate(over="ignore", under="ignore"):
            bits = np.asarray(amax * np.float32(1 / state.form.max), np.float32).view(np.uint32)
        exponent = (bits >> np.uint32(23)).astype(np.int64)
        fraction = bits & np.uint32(0x7FFFFF)
        up = (fraction > 0) & (exponent != 254) & ~((exponent == 0) & (fraction <= 0x400000))
        exponent = np.minimum(exponent + up, 254)  # an infinite amax has the largest
        scale = np.ldexp(np.float32(1), 127 - exponent).astype(np.float32)
        return (float(scale) if scale.ndim == 0 else scale), state.amax_history


class Float8BlockScaling(_Blocks):
    """A scale for each 1 x 128 elements, or 128 x 128: max / amax, or the power of two below it.

    x_block_scaling_dim is that of tensors of the forward, grad_block_scaling_dim that of gradients: 1 for 1 x 128,
    2 for 128 x 128. w_block_scaling_dim, of weights, is kept for programs that share the recipe with
    TransformerEngine; attention has none.

        >>> import regard
        >>> recipe = regard.fp8.Float8BlockScaling()
        >>> recipe.block(), recipe.fp8_format
        ((1, 128), 'E4M3')

    Raises ValueError for a parameter that is not as above, with its name.
    """

    kind = "block"

    def __init__(self, fp8_format: str = "E4M3", use_f32_scales: bool = False, x_block_scaling_dim: int = 1,
                 w_block_scaling_dim: int = 2, grad_block_scaling_dim: int = 1) -> None:
        self.fp8_format = _check_format(fp8_format, ("E4M3", "HYBRID"))
        self.use_f32_scales = bool(use_f32_scales)
        dims = {"x_block_scaling_dim": x_block_scaling_dim, "w_block_scaling_dim": w_block_scaling_dim,
                "grad_block_scaling_dim": grad_block_scaling_dim}
        for name, dim in dims.items():
            if dim not in (1, 2):
                raise ValueError(f"{name} ({dim!r}) must be 1 (1 x 128) or 2 (128 x 128)")
        self.__dict__.update(dims)

    def block(self, backward: bool = False) -> tuple[int, int]:
        dim = self.__dict__["grad_block_scaling_dim" if backward else "x_block_scaling_dim"]
        return (1, 128) if dim == 1 else (128, 128)

    def _step(self, state: TensorState, amax: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        return _current_scale(amax, state.form, not self.use_f32_scales), state.amax_history
