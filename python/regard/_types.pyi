"""Types of arguments."""

from _ctypes import CFuncPtr
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy

class SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

NumpyArray: TypeAlias = numpy.ndarray[Any, Any]
Array: TypeAlias = NumpyArray | SupportsDLPack
# The results of a call are of q's kind: a torch.Tensor where q is one.
ArrayT = TypeVar("ArrayT", bound=SupportsDLPack)
Numbers: TypeAlias = Array | Sequence[float] | Sequence[Sequence[float]]
Integers: TypeAlias = Array | Sequence[int] | Sequence[Sequence[int]]
Layout: TypeAlias = Literal["BHSD", "BSHD"]
Scores: TypeAlias = Literal["scaled", "edited", "probs"]

class HasAddress(Protocol):
    """What numba's @cfunc returns."""

    @property
    def address(self) -> int: ...

CFunction: TypeAlias = int | HasAddress | CFuncPtr
# One that edits scores, or it and its gradient.
ScoreCallback: TypeAlias = CFunction | tuple[CFunction, CFunction | None]
