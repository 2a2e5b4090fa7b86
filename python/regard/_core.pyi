"""The compiled part of regard. The package names everything that is public."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, overload

from typing_extensions import Unpack

from ._gradients import Gradients
from ._selection import Selection
from ._types import (
    Array,
    ArrayT,
    AttentionOptions,
    Integers,
    Layout,
    Numbers,
    NumpyArray,
    ScoreCallback,
    Scores,
)
from .score_functions import Expression

__version__: str
scopes: ContextVar[Scopes]

class Policy:
    def __init__(
        self,
        *,
        only: str | Sequence[str] | None = None,
        deny: str | Sequence[str] | None = None,
        prefer: str | Sequence[str] | None = None,
        require: Literal["none", "run_to_run", "thread_count_invariant", "batch_invariant"]
        | None = None,
        max_error: float | None = None,
        max_workspace_bytes: int | None = None,
        on_fallback: Literal["allow", "warn", "error"] | None = None,
        assume_finite: bool | None = None,
        self_check: int | None = None,
        self_check_deny: bool | None = None,
        self_check_dir: str | None = None,
    ) -> None: ...
    @property
    def only(self) -> list[str] | None: ...
    @property
    def deny(self) -> list[str]: ...
    @property
    def prefer(self) -> list[str] | None: ...
    @property
    def require(self) -> str | None: ...
    @property
    def max_error(self) -> float | None: ...
    @property
    def max_workspace_bytes(self) -> int | None: ...
    @property
    def on_fallback(self) -> str | None: ...
    @property
    def assume_finite(self) -> bool | None: ...
    @property
    def self_check(self) -> int | None: ...
    @property
    def self_check_deny(self) -> bool | None: ...
    @property
    def self_check_dir(self) -> str | None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class Scopes: ...

class Saved:
    def __init__(
        self,
        stats: Array | None = None,
        lse: Array | None = None,
        seed: int = 0,
        offset: int = 0,
        backend: str | None = None,
        max_error: float | None = None,
    ) -> None: ...
    @property
    def stats(self) -> Any: ...
    @property
    def kind(self) -> Literal["stats", "lse"]: ...
    @property
    def seed(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def backend(self) -> str | None: ...
    @property
    def max_error(self) -> float | None: ...
    @property
    def plan(self) -> dict[str, Any] | None: ...

class Measurement:
    def rows(self) -> list[tuple[str, bool, str]]: ...
    def add_row(
        self, name: str, backward: bool, reason: str, kernel: str, workers: int, /
    ) -> None: ...
    def add_note(self, note: str, /) -> None: ...
    def measure(
        self, calls: Sequence[Callable[[], Any] | None], seconds: float, rounds: int, /
    ) -> None: ...
    def text(self) -> str: ...
    def json(self) -> str: ...

def plan_benchmark(*args: Any, **kwargs: Any) -> Measurement: ...

class Lengths:
    def __init__(
        self,
        *,
        mask: Array | None = None,
        seqlens: Integers | None = None,
        position_ids: Integers | None = None,
        seqlen: int | None = None,
    ) -> None: ...
    @property
    def batch(self) -> int: ...
    @property
    def seqlen(self) -> int: ...
    @property
    def num_sequences(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def max_seqlen(self) -> int: ...
    @property
    def indices(self) -> NumpyArray: ...
    @property
    def cu_seqlens(self) -> NumpyArray: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class BlockMask:
    @property
    def block_size(self) -> tuple[int, int]: ...
    @property
    def shape(self) -> tuple[int, int, int, int]: ...
    @property
    def empty(self) -> float: ...
    @property
    def partial(self) -> float: ...
    @property
    def blocks(self) -> NumpyArray: ...
    def view(self, seqlen_q: int, seqlen_kv: int) -> NumpyArray: ...
    def to_text(self, b: int = 0, h: int = 0) -> str: ...

def create_block_mask(
    mask_function: str | Expression,
    *,
    seqlen_q: int,
    seqlen_kv: int,
    batch: int = 1,
    num_heads: int = 1,
    captured: Sequence[Array] | None = None,
    block_size: int | tuple[int, int] = 128,
    diagonal: Literal["top_left", "bottom_right"] | int | None = None,
) -> BlockMask: ...
def unpad(x: Array, lengths: Lengths) -> Any: ...
def pad(packed: Array, lengths: Lengths) -> Any: ...
class TracedCall:
    @property
    def case(self) -> str | None: ...
    @property
    def direction(self) -> Literal["forward", "backward"]: ...
    @property
    def backend(self) -> str | None: ...
    @property
    def kernel(self) -> str | None: ...
    @property
    def isa(self) -> str | None: ...
    @property
    def workspace_bytes(self) -> int | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def predicted_seconds(self) -> float | None: ...
    @property
    def operations(self) -> float | None: ...
    @property
    def bytes(self) -> float | None: ...
    @property
    def share_of_peak(self) -> float | None: ...
    @property
    def share_of_bandwidth(self) -> float | None: ...
    @property
    def layer(self) -> str | None: ...
    @property
    def thread(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def selection(self) -> Selection | None: ...

class Recording:
    def __init__(self) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def calls(self) -> list[TracedCall]: ...

def calibration(calls: list[TracedCall], limit: float) -> list[dict[str, Any]]: ...
def with_scope(outer: Scopes | None, policy: Policy, replace: bool) -> Scopes: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: None = None,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> NumpyArray: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: None = None,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, Saved]: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: Scores,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, NumpyArray]: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: Scores,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, NumpyArray, Saved]: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: None = None,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, NumpyArray]: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: None = None,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, NumpyArray, Saved]: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: Scores,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, NumpyArray, NumpyArray]: ...
@overload
def attention(
    q: NumpyArray,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: Scores,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[NumpyArray, NumpyArray, NumpyArray, Saved]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: None = None,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> ArrayT: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: None = None,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, Saved]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: Scores,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_scores: Scores,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, ArrayT, Saved]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: None = None,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: None = None,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, ArrayT, Saved]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: Scores,
    return_saved: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, ArrayT, ArrayT]: ...
@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_scores: Scores,
    return_saved: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[ArrayT, ArrayT, ArrayT, Saved]: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    attn_mask: Array | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    diagonal: Literal["top_left", "bottom_right"] | int | Integers | None = None,
    window: Sequence[int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    score_function: str | Expression | None = None,
    mask_function: str | Expression | None = None,
    captured: Sequence[Array] | None = None,
    score_callback: ScoreCallback | None = None,
    block_mask: Array | BlockMask | None = None,
    block_size_q: int = 0,
    block_size_kv: int = 0,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    seqlens_q: Integers | None = None,
    seqlens_kv: Integers | None = None,
    segment_ids_q: Integers | None = None,
    segment_ids_kv: Integers | None = None,
    cu_seqlens_q: Integers | None = None,
    cu_seqlens_kv: Integers | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    lengths: Lengths | None = None,
    lengths_kv: Lengths | None = None,
    padding: Literal["auto", "padded", "packed"] | None = None,
    page_table: Integers | None = None,
    cache_batch_idx: Integers | None = None,
    cache_leftpad: Integers | None = None,
    shared_prefix_kv: int = 0,
    k_new: Array | None = None,
    v_new: Array | None = None,
    tree_mask: Array | None = None,
    scales_k: Array | None = None,
    scales_v: Array | None = None,
    channel_scales_k: Array | None = None,
    scales_q: Array | None = None,
    scale_layout: Literal["1x32", "1x128", "128x128"] | None = None,
    allow_future_scales: bool = False,
    quantize_probs: bool = False,
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    hadamard: bool = False,
    positions: Integers | None = None,
    descale_q: float | Numbers | None = None,
    descale_k: float | Numbers | None = None,
    descale_v: float | Numbers | None = None,
    fp8_recipe: Literal["delayed", "current", "mxfp8", "block"] | None = None,
    d_out_dtype: str | None = None,
    gradient_dtype: str | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    layout: Layout = "BHSD",
    backends: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    return_lse: bool = False,
    return_scores: Scores | None = None,
    return_saved: bool = False,
    out_amax: Array | None = None,
    out: Array | None = None,
) -> Any: ...
def attention_backward(
    d_out: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    saved: Saved,
    *,
    d_lse: Array | None = None,
    delta: Array | None = None,
    descale_d_out: float | Numbers | None = None,
    scales_d_out: Array | None = None,
    gradient_scales: Numbers | None = None,
    return_amax: bool = False,
    attn_mask: Array | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    diagonal: Literal["top_left", "bottom_right"] | int | Integers | None = None,
    window: Sequence[int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    score_function: str | Expression | None = None,
    mask_function: str | Expression | None = None,
    captured: Sequence[Array] | None = None,
    score_callback: ScoreCallback | None = None,
    block_mask: Array | BlockMask | None = None,
    block_size_q: int = 0,
    block_size_kv: int = 0,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    seqlens_q: Integers | None = None,
    seqlens_kv: Integers | None = None,
    segment_ids_q: Integers | None = None,
    segment_ids_kv: Integers | None = None,
    cu_seqlens_q: Integers | None = None,
    cu_seqlens_kv: Integers | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    lengths: Lengths | None = None,
    lengths_kv: Lengths | None = None,
    padding: Literal["auto", "padded", "packed"] | None = None,
    scales_k: Array | None = None,
    scales_v: Array | None = None,
    scales_q: Array | None = None,
    scale_layout: Literal["1x32", "1x128", "128x128"] | None = None,
    allow_future_scales: bool = False,
    quantize_probs: bool = False,
    descale_q: float | Numbers | None = None,
    descale_k: float | Numbers | None = None,
    descale_v: float | Numbers | None = None,
    fp8_recipe: Literal["delayed", "current", "mxfp8", "block"] | None = None,
    d_out_dtype: str | None = None,
    gradient_dtype: str | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    layout: Layout = "BHSD",
    backends: str | Sequence[str] | None = None,
    policy: Policy | None = None,
) -> Gradients: ...
def explain(
    q: Array | str,
    k: Array | None = None,
    v: Array | None = None,
    *,
    attn_mask: Array | None = None,
    attn_bias: Array | None = None,
    is_causal: bool = False,
    diagonal: Literal["top_left", "bottom_right"] | int | Integers | None = None,
    window: Sequence[int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    score_function: str | Expression | None = None,
    mask_function: str | Expression | None = None,
    captured: Sequence[Array] | None = None,
    score_callback: ScoreCallback | None = None,
    block_mask: Array | BlockMask | None = None,
    block_size_q: int = 0,
    block_size_kv: int = 0,
    alibi_slopes: Numbers | None = None,
    sinks: Numbers | None = None,
    seqlens_q: Integers | None = None,
    seqlens_kv: Integers | None = None,
    segment_ids_q: Integers | None = None,
    segment_ids_kv: Integers | None = None,
    cu_seqlens_q: Integers | None = None,
    cu_seqlens_kv: Integers | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    lengths: Lengths | None = None,
    lengths_kv: Lengths | None = None,
    padding: Literal["auto", "padded", "packed"] | None = None,
    page_table: Integers | None = None,
    cache_batch_idx: Integers | None = None,
    cache_leftpad: Integers | None = None,
    shared_prefix_kv: int = 0,
    k_new: Array | None = None,
    v_new: Array | None = None,
    tree_mask: Array | None = None,
    scales_k: Array | None = None,
    scales_v: Array | None = None,
    channel_scales_k: Array | None = None,
    scales_q: Array | None = None,
    scale_layout: Literal["1x32", "1x128", "128x128"] | None = None,
    allow_future_scales: bool = False,
    quantize_probs: bool = False,
    k_dtype: str | None = None,
    v_dtype: str | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    hadamard: bool = False,
    positions: Integers | None = None,
    descale_q: float | Numbers | None = None,
    descale_k: float | Numbers | None = None,
    descale_v: float | Numbers | None = None,
    fp8_recipe: Literal["delayed", "current", "mxfp8", "block"] | None = None,
    d_out_dtype: str | None = None,
    gradient_dtype: str | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    layout: Layout = "BHSD",
    backends: str | Sequence[str] | None = None,
    policy: Policy | None = None,
    return_lse: bool = False,
    return_scores: Scores | None = None,
    return_saved: bool = False,
    out_amax: Array | None = None,
    out: Array | None = None,
) -> Selection: ...
@overload
def merge_states(
    states: Sequence[tuple[NumpyArray, NumpyArray]], *, layout: Layout = "BHSD"
) -> tuple[NumpyArray, NumpyArray]: ...
@overload
def merge_states(
    states: Sequence[tuple[ArrayT, ArrayT]], *, layout: Layout = "BHSD"
) -> tuple[ArrayT, ArrayT]: ...
class RankPlan:
    def comm(self) -> str: ...
    def explain(self) -> str: ...

def plan_ranks(
    q: Array,
    k: Array,
    v: Array,
    *,
    rank: int,
    ranks: int,
    seqlens: tuple[int, int],
    layout: str,
    cu_seqlens: Sequence[int],
    comm: str,
    topology: tuple[int, int],
    timeout: float,
    max_bytes: int,
    needs_grad: bool,
    keywords: dict[str, Any],
    network: tuple[float, float, float, float] | None = None,
    is_measured: bool = False,
) -> RankPlan: ...
def measure_network(
    link: Any, *, topology: tuple[int, int], timeout: float
) -> tuple[float, float, float, float]: ...
def agree_ranks(
    link: Any,
    text: str,
    numbers: tuple[int, int, int, int],
    *,
    timeout: float,
    policy: Policy | None = None,
) -> list[list[int]]: ...
def attention_ranks(
    plan: RankPlan,
    link: Any,
    q: ArrayT,
    k: ArrayT,
    v: ArrayT,
    keywords: dict[str, Any],
    activities: list[Any] | None = None,
) -> tuple[ArrayT, ArrayT]: ...
def attention_ranks_backward(
    plan: RankPlan,
    link: Any,
    d_out: ArrayT,
    saved: tuple[ArrayT, ...],
    keywords: dict[str, Any],
    activities: list[Any] | None = None,
) -> tuple[ArrayT, ArrayT, ArrayT, ArrayT | None]: ...
def rank_pieces(
    layout: str, length: int, ranks: int, cu_seqlens: Sequence[int]
) -> list[list[tuple[int, int]]]: ...
def is_recording() -> bool: ...
def record_formula(case: str, seconds: float) -> None: ...
def last_selection() -> Selection | None: ...
def devices() -> list[dict[str, Any]]: ...
def counters() -> dict[str, int]: ...
def self_check_violations() -> list[dict[str, Any]]: ...
def record(path: str | None) -> None: ...
def freeze(cases: str | Sequence[str]) -> str: ...
def replay(text: str | None) -> None: ...
def diff(a: str, b: str) -> list[tuple[str, str, str, str]]: ...
def machine_rates(threads: int | None = None) -> dict[str, Any]: ...
def environment_json() -> str: ...
def set_num_threads(n: int) -> None: ...
def get_num_threads() -> int: ...
def trim() -> None: ...
def built_with_cuda() -> bool: ...
def run_in_place(
    tensors: dict[str, Any],
    options: dict[str, Any],
    stream: int,
    policy: Policy | None,
    backend: str | None,
    needs_grad: bool,
) -> tuple[str, float | None]: ...
def explain_in_place(
    tensors: dict[str, Any],
    options: dict[str, Any],
    policy: Policy | None,
    needs_grad: bool,
) -> Selection: ...
