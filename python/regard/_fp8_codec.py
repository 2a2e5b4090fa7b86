"""8-bit floats, bit by bit: rounding to nearest even or stochastically, saturating or not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Format(NamedTuple):
    """A format's bits. E4M3 has no infinity, and one NaN of each sign."""

    name: str
    exponent: int
    mantissa: int
    has_infinity: bool
    max: float
    max_code: int
    nan_code: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def overflow_code(self) -> int:
        """What lies beyond the largest number becomes where it is not held to that."""
        return self.max_code + 1 if self.has_infinity else self.nan_code


E4M3 = Format("f8e4m3", 4, 3, False, 448.0, 0x7E, 0x7F)
E5M2 = Format("f8e5m2", 5, 2, True, 57344.0, 0x7B, 0x7E)
FORMATS = {form.name: form for form in (E4M3, E5M2)}


def format_of(dtype: Any) -> Format:
    if dtype in FORMATS:
        return FORMATS[dtype]
    raise ValueError(f"dtype ({dtype!r}) must be 'f8e4m3' or 'f8e5m2'")


def _table(form: Format) -> NDArray[np.float32]:
    """The numbers of all 256 codes."""
    codes = np.arange(256)
    field = codes >> form.mantissa & (1 << form.exponent) - 1
    fraction = (codes & (1 << form.mantissa) - 1) + np.where(field > 0, 1 << form.mantissa, 0)
    values = np.ldexp(fraction.astype(np.float64), np.maximum(field, 1) - form.bias - form.mantissa)
    magnitude = codes & 0x7F
    values[magnitude > form.max_code] = np.nan
    if form.has_infinity:
        values[magnitude == form.max_code + 1] = np.inf
    return np.where(codes & 0x80, -values, values).astype(np.float32)


TABLES = {name: _table(form) for name, form in FORMATS.items()}


def philox_words(seed: int, offset: int, count: int) -> NDArray[np.uint32]:
    """`count` words of 32 bits, four of each block: Philox4x32 with 7 rounds, as dropout draws it,
    with the key (seed_lo, seed_hi ^ offset_hi) and the counter
    (block_lo, block_hi, 0x66703872, offset_lo)."""
    word = np.uint64(0xFFFFFFFF)
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    c = [blocks & word, blocks >> np.uint64(32), np.full_like(blocks, 0x66703872),
         np.full_like(blocks, offset & 0xFFFFFFFF)]
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32 ^ offset >> 32) & 0xFFFFFFFF
    for _ in range(7):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> np.uint64(32) ^ c[1] ^ np.uint64(k0), b & word,
             a >> np.uint64(32) ^ c[3] ^ np.uint64(k1), a & word]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=-1).astype(np.uint32).reshape(-1)[:count]


def encode(x: NDArray[Any], form: Format, saturate: bool,
           draws: NDArray[np.uint32] | None = None) -> NDArray[np.uint8]:
    """The codes of float64 numbers, each rounded once. With `draws`, up where the draw / 2^32 is less
    than the fraction that is cut off."""
    magnitude = np.abs(x)
    finite = np.isfinite(x)
    least = 1 - form.bias
    size = np.where(finite, magnitude, 0.0)
    exponent = np.where(size > 0, np.maximum(np.frexp(size)[1] - 1, least), least)
    # In units of the last bit; a power of two changes no digit.
    units = np.ldexp(size, form.mantissa - exponent)
    if draws is None:
        kept = np.rint(units)
    else:
        kept = np.floor(units)
        kept += draws.reshape(x.shape) * 2.0**-32 < units - kept
    # `kept` has the hidden bit: a carry moves on to the next exponent by itself.
    large = ((exponent - least).astype(np.int64) << form.mantissa) + kept.astype(np.int64)
    code = np.where(finite, large, form.max_code + 1)
    beyond = form.max_code if saturate else form.overflow_code
    code = np.where(code > form.max_code, beyond, code)
    code = np.where(np.isnan(x), form.nan_code, code)
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)
