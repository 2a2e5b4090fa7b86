"""Rows of 8 bits, or 4, with scales in a cache. attention quantises them as it appends."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._cache_memory import DeviceMemory

SCALES = ("token", "page", "channel")
_QUANTISED = ("int8", "float8_e4m3fn", "float8_e5m2", "uint8")  # uint8: two codes of 4 bits
_GROUP = 32  # elements of u4 that share a scale and a minimum


def is_quantised(dtype: Any) -> bool:
    """Of a dtype of NumPy's or PyTorch's."""
    return str(dtype).removeprefix("torch.") in _QUANTISED


def _check(name: str, scales: NDArray[np.float32]) -> None:
    good = np.isfinite(scales) & (scales > 0)
    if not good.all():
        place = tuple(int(i) for i in np.argwhere(~good)[0])
        raise ValueError(f"{name}{list(place)} ({scales[place]}) must be finite and more than 0; set it "
                         "before the first row is appended")


class RowScales:
    """The scales of k, or v, of a cache; `name` is its name in messages. Of its scales, those of rows
    move with them: [entries, kv heads, rows, 1], of u4 [entries, kv heads, rows, 2 * groups], a scale and a
    minimum for each group. Those of pages [pages, kv heads, 1, 1] and of columns
    [kv heads, head_dim] are NaN until the caller sets them."""

    def __init__(self, name: str, kind: str, shape: tuple[int, ...], memory: Any) -> None:
        of_groups = memory.per_element == 2
        self.name, self._of_groups = name, of_groups
        entries, heads, rows, dim = shape
        by_channel = kind == "channel" and name == "k"
        if of_groups and (kind == "page" or by_channel):
            raise ValueError(f"scales ({kind!r}) must be 'token' where {name} is u4: each row has its own")
        self.of_rows = kind in ("token", "channel") and not by_channel
        if isinstance(memory, DeviceMemory) and not self.of_rows:
            raise ValueError(f"scales ({kind!r}) must be 'token' on {memory.device}: the host checks those "
                             "that a caller sets, and would wait")
        self.scales: Any = None
        self.channels: NDArray[np.float32] | None = None
        if by_channel:
            self.channels = np.full((heads, dim), np.nan, np.float32)
        elif of_groups:
            self.scales = memory.full((entries, heads, rows, 2 * -(-dim // _GROUP)), 1.0)
        elif self.of_rows:
            self.scales = memory.full((entries, heads, rows, 1), 1.0)
        else:
            self.scales = memory.full((entries, heads, 1, 1), np.nan)

    def keywords(self) -> dict[str, Any]:
        """Of attention."""
        made = {}
        if self.scales is not None:
            made[f"scales_{self.name}"] = self.scales if self._of_groups else self.scales[..., 0]
        if self.channels is not None:
            made[f"channel_scales_{self.name}"] = self.channels
        return made

    def check(self, given: NDArray[np.float32] | None) -> None:
        """ValueError where scales of columns, or those given of pages, are not set."""
        if self.channels is not None:
            _check(f"channel_scales_{self.name}", self.channels)
        if given is not None:
            _check(f"scales_{self.name}", given)

    def numbers(self, codes: NDArray[np.float32],
                scales: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """What codes [kv heads, rows, head_dim] stand for, of u4 pairs of them [.., head_dim / 2]; scales
        [kv heads, rows, 1 or 2 * groups]."""
        if self._of_groups and scales is not None:
            pairs = codes.astype(np.uint8)
            codes = np.stack([pairs & 15, pairs >> 4], -1).reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
            group = np.arange(codes.shape[-1]) // _GROUP
            numbers = codes.astype(np.float64) * scales[..., 2 * group] + scales[..., 2 * group + 1]
            return numbers.astype(np.float32)
        if scales is not None:
            codes = codes * scales
        return codes if self.channels is None else codes * self.channels[:, None]
