"""Types of arguments."""

from _ctypes import CFuncPtr
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy

from ._core import BlockMask, Lengths, Policy
from .score_functions import Expression

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

class AttentionOptions(TypedDict, total=False):
    """The keywords of attention that do not change how many results it returns."""

    attn_mask: Array | None
    attn_bias: Array | None
    is_causal: bool
    diagonal: Literal["top_left", "bottom_right"] | int | Integers | None
    window: Sequence[int]
    softmax_scale: float | None
    softcap: float
    score_function: str | Expression | None
    mask_function: str | Expression | None
    captured: Sequence[Array] | None
    score_callback: ScoreCallback | None
    block_mask: Array | BlockMask | None
    block_size_q: int
    block_size_kv: int
    alibi_slopes: Numbers | None
    sinks: Numbers | None
    seqlens_q: Integers | None
    seqlens_kv: Integers | None
    segment_ids_q: Integers | None
    segment_ids_kv: Integers | None
    cu_seqlens_q: Integers | None
    cu_seqlens_kv: Integers | None
    max_seqlen_q: int | None
    max_seqlen_kv: int | None
    lengths: Lengths | None
    lengths_kv: Lengths | None
    padding: Literal["auto", "padded", "packed"] | None
    page_table: Integers | None
    cache_batch_idx: Integers | None
    cache_leftpad: Integers | None
    shared_prefix_kv: int
    k_new: Array | None
    v_new: Array | None
    tree_mask: Array | None
    scales_k: Array | None
    scales_v: Array | None
    channel_scales_k: Array | None
    scales_q: Array | None
    scale_layout: Literal["1x32", "1x128", "128x128"] | None
    allow_future_scales: bool
    quantize_probs: bool
    k_dtype: str | None
    v_dtype: str | None
    rotary_cos: Array | None
    rotary_sin: Array | None
    rotary_interleaved: bool
    hadamard: bool
    positions: Integers | None
    descale_q: float | Numbers | None
    descale_k: float | Numbers | None
    descale_v: float | Numbers | None
    fp8_recipe: Literal["delayed", "current", "mxfp8", "block"] | None
    d_out_dtype: str | None
    gradient_dtype: str | None
    dropout_p: float
    seed: int | None
    layout: Layout
    backends: str | Sequence[str] | None
    policy: Policy | None
    out_amax: Array | None
    out: Array | None
