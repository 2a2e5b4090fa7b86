"""Rows of 8 bits with scales in a cache: what attention does as it appends, in NumPy, by the rule of
docs/semantics.md."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALES = ("token", "page", "channel")
_GREATEST = {"int8": 127, "float8_e4m3fn": 448, "float8_e5m2": 57344}


def is_quantised(dtype: Any) -> bool:
    """Of a dtype of NumPy's or PyTorch's."""
    return _name(dtype) in _GREATEST


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _checked(name: str, scales: NDArray[np.float32]) -> NDArray[np.float32]:
    good = np.isfinite(scales) & (scales > 0)
    if not good.all():
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        raise ValueError(f"{name}{list(place)} ({scales[place]}) must be finite and more than 0; set it "
                         "before the first row is appended")
    return scales


class Quantiser:
    """How k, or v, of a cache is quantised; `name` is its name in messages. Of its scales, those of rows
    move with them: [entries, kv heads, rows, 1]. Those of pages [pages, kv heads, 1, 1] and of columns
    [kv heads, head_dim] are NaN until the caller sets them."""

    def __init__(self, name: str, dtype: Any, kind: str, shape: tuple[int, ...]) -> None:
        self.name, self.greatest = name, np.float32(_GREATEST[_name(dtype)])
        entries, heads, rows, dim = shape
        by_channel = kind == "channel" and name == "k"
        self.of_rows = kind in ("token", "channel") and not by_channel
        self.scales: NDArray[np.float32] | None = None
        self.channels: NDArray[np.float32] | None = None
        if by_channel:
            self.channels = np.full((heads, dim), np.nan, np.float32)
        elif self.of_rows:
            self.scales = np.ones((entries, heads, rows, 1), np.float32)
        else:
            self.scales = np.full((entries, heads, 1, 1), np.nan, np.float32)

    def keywords(self) -> dict[str, NDArray[np.float32]]:
        """Of attention."""
        made = {}
        if self.scales is not None:
            made[f"scales_{self.name}"] = self.scales[..., 0]
        if self.channels is not None:
            made[f"channel_scales_{self.name}"] = self.channels
        return made

    def codes(self, rows: NDArray[np.float32], given: NDArray[np.float32] | None
              ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Codes as numbers, not yet rounded to the cache's type, of rows [kv heads, new, head_dim], and
        the scales that they bring. `given`: those of their pages, [kv heads, new, 1]."""
        if not np.isfinite(rows).all():
            raise ValueError(f"{self.name} must be finite: its rows are quantised")
        if self.channels is not None:
            rows = rows / _checked(f"channel_scales_{self.name}", self.channels)[:, None]
        scales = given
        if self.of_rows:
            most = np.abs(rows).max(axis=-1, keepdims=True, initial=0)
            scales = np.maximum(most / self.greatest, np.float32(2.0 ** -126))
        if scales is not None:
            rows = rows / (scales if self.of_rows else _checked(f"scales_{self.name}", scales))
        held = np.clip(rows, -self.greatest, self.greatest)
        codes = np.rint(held) if self.greatest == 127 else held
        return codes, scales if self.of_rows else None

    def numbers(self, codes: NDArray[np.float32],
                scales: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """What codes [kv heads, rows, head_dim] stand for; scales [kv heads, rows, 1]."""
        if scales is not None:
            codes = codes * scales
        return codes if self.channels is None else codes * self.channels[:, None]
