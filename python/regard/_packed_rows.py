"""Several sequences in the rows of a model's batch, as Transformers marks them.

cu_seq_lens_q and cu_seq_lens_k count through all rows of the batch, seq_idx numbers the sequence of
each token, and position_ids of a causal model begin anew at each sequence. Where no mask says more
than that, the sequences are one packed call; else the mask is restricted to them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from .torch._options import Options
from .torch._packed import attend_packed
from .torch._scopes import ArgumentError

# Keywords of flash-attention and of state space models that mark several sequences in one row.
KEYWORDS = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"})
_STARTS = ("cu_seq_lens_q", "cu_seq_lens_k")

# Keywords that models pass through their layers and that do not concern a single attention: the
# mask, the cache or the layer already contains what they mean.
_ELSEWHERE = frozenset({
    "cache_position", "decoder_input_ids", "deterministic", "encoder_attention_mask",
    "encoder_hidden_states", "ignore_index", "input_ids", "labels", "logits_to_keep",
    "max_new_tokens", "num_items_in_batch", "output_hidden_states", "output_router_logits",
    "past_key_value", "past_key_values", "position_embeddings", "position_ids", "return_dict",
    "return_loss", "shift_labels", "token_type_ids", "use_cache"})


def check_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Refuses unknown keywords; returns those that mark packed sequences."""
    packed = {}
    for name, value in keywords.items():
        if value is None or value is False or name in _ELSEWHERE:
            continue
        if name in KEYWORDS:
            packed[name] = value
            continue
        text = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ArgumentError(f"{name} ({text}) is not supported by attn_implementation='regard'; "
                            "accepted are dropout, scaling, is_causal, sliding_window, softcap, s_aux, "
                            "position_bias, indices and output_attentions")
    return packed


class Shape(NamedTuple):
    """What an attention computes: [batch, rows] queries on [batch, keys]."""

    batch: int
    rows: int
    keys: int
    is_causal: bool
    window: int | None
    chunk: int | None = None  # positions of a sequence that see one another


class Sequences(NamedTuple):
    """The sequences of queries and of keys."""

    ids_q: Tensor           # [batch, rows]: the number of each query's sequence
    ids_kv: Tensor
    starts_q: Tensor | None   # cu_seqlens; None where a graph is traced and only ids are given
    starts_kv: Tensor | None
    longest_q: int          # 0: read from cu_seqlens
    longest_kv: int
    named: str              # what marked them; "" where it was position_ids


class Attention(NamedTuple):
    """How to compute sequences: as a packed call, or by a mask."""

    packed: bool
    mask: Tensor | None


_Key = tuple[tuple[tuple[Any, int] | None, ...], Any]  # of each tensor its reference and version


class _Recent:
    """The results for the tensors of the last two calls: each layer of a model passes the same, or
    those of its kind, with a window or without."""

    def __init__(self) -> None:
        self._entries: tuple[tuple[_Key, Any], ...] = ()  # replaced as a whole: threads may call

    def _forget(self, _: object) -> None:
        self._entries = ()

    @staticmethod
    def _is_of(key: _Key, tensors: tuple[Any, ...], values: Any) -> bool:
        # Two dead references are unequal, and live ones equal by tensor: compare by identity.
        return len(key[0]) == len(tensors) and key[1] == values and all(
            x is None if k is None else k[0]() is x and k[1] == x._version
            for x, k in zip(tensors, key[0]))

    def get(self, tensors: tuple[Any, ...], values: Any, make: Any) -> Any:
        # Inference tensors do not count how often they were written.
        if torch.compiler.is_compiling() or any(
                x is not None and x.is_inference() for x in tensors):
            return make()
        entries = self._entries
        for key, result in entries:
            if self._is_of(key, tensors, values):
                return result
        made = make()
        references = tuple(None if x is None else (weakref.ref(x, self._forget), x._version)
                           for x in tensors)
        self._entries = (((references, values), made), *entries[:1])
        return made


_recent_sequences, _recent_attention = _Recent(), _Recent()


def _refuse(words: dict[str, Any], why: str) -> ArgumentError:
    return ArgumentError(f"{', '.join(sorted(words))} (of packed sequences) {why}")


def _ids_of_starts(starts: Tensor, batch: int, rows: int) -> Tensor:
    places = torch.arange(batch * rows, device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, places, right=True).view(batch, rows)


def _starts_of_begins(begins: Tensor) -> Tensor:
    """cu_seqlens of [batch, rows] that are True where a sequence begins."""
    end = begins.new_full((1,), begins.numel(), dtype=torch.int64)
    return torch.cat([begins.flatten().nonzero().flatten(), end]).to(torch.int32)


def _restarts(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor] | None:
    """Where positions begin anew, [batch or 1, rows], and whether they do at all: they return to their
    least, and count by one elsewhere. None for others."""
    if positions.dim() != 2 or positions.shape[1] != shape.rows or (
            positions.shape[0] not in (1, shape.batch)):
        return None
    begins = positions == positions.amin(-1, keepdim=True)
    again = begins[:, 1:]
    packed = again.any() & (again | (positions.diff(dim=-1) == 1)).all()
    return torch.cat([torch.ones_like(begins[:, :1]), again], 1), packed


def _begins_of_positions(positions: Tensor, shape: Shape) -> Tensor | None:
    """Where the sequences of position_ids begin; None where these mark none, as those of padding may
    not."""
    found = _restarts(positions, shape)
    if found is None:
        return None
    begins, packed = found
    if torch.compiler.is_compiling():
        torch._assert_async(~packed, "position_ids of packed sequences in a compiled layer without a "
                            "mask: expected cu_seq_lens_q and cu_seq_lens_k beside them")
        return None
    if isinstance(packed, FakeTensor) or not packed:  # a fake tensor has no values to read
        return None
    return begins.expand(shape.batch, -1)


def _traced_sequences(positions: Tensor, shape: Shape) -> Sequences | None:
    """Those of position_ids beside a mask, in a graph: a single one where positions mark none."""
    found = _restarts(positions, shape)
    if found is None:
        return None
    begins, packed = found
    ids = torch.where(packed, begins.cumsum(-1), 0).expand(shape.batch, -1)
    behind = torch.where(packed, -1, 0).expand(shape.batch, shape.keys - shape.rows)
    return Sequences(ids, torch.cat([ids, behind], 1), None, None, 0, 0, "")


def sequences_for_masks(preprocess: Callable[..., Any], config: Any, inputs_embeds: Tensor,
                        attention_mask: Any, past_key_values: Any, position_ids: Any, *args: Any,
                        **keywords: Any) -> Any:
    """Transformers' _preprocess_mask_arguments, `preprocess`, for Llama-4, whose layers are not given
    position_ids: the third result, the sequence of each token, also beside a mask or a cache."""
    result = preprocess(config, inputs_embeds, attention_mask, past_key_values, position_ids, *args,
                        **keywords)
    early, padding, found, rows, keys, *offsets = result
    if early or found is not None or not isinstance(position_ids, Tensor) or rows <= 1 or (
            torch.compiler.is_compiling()):
        return result
    shape = Shape(inputs_embeds.shape[0], rows, keys, True, None)
    begins = _begins_of_positions(position_ids, shape)
    if begins is None:
        return result
    if padding is not None and padding.shape[-1] == rows and not padding.all():
        if not (begins[:, 1:] & padding[:, 1:] & padding[:, :-1]).any():
            return result  # the positions of padding
        raise ArgumentError("position_ids of packed sequences beside an attention_mask with padding are "
                            "not supported in layers with chunks; expected no mask")
    if keys != rows:
        raise ArgumentError("position_ids of packed sequences beside a cache of earlier keys or of a "
                            "fixed length are not supported in layers with chunks; expected an empty "
                            "DynamicCache, or use_cache=False")
    return early, padding, begins.cumsum(-1), rows, keys, *offsets


def _given_starts(words: dict[str, Any], shape: Shape) -> list[Tensor]:
    starts = [words[name] for name in _STARTS if isinstance(words.get(name), Tensor)]
    if len(starts) != 2:
        raise _refuse(words, "must be both cu_seq_lens_q and cu_seq_lens_k, tensors")
    for name, each, rows in zip(_STARTS, starts, (shape.rows, shape.keys)):
        if each.dim() != 1 or each.shape[0] == 0 or each.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"{name} (of shape {tuple(each.shape)}, {each.dtype}) must be int32 or "
                                "int64 [sequences + 1]")
        if torch.compiler.is_compiling():
            torch._assert_async(each[-1] == shape.batch * rows, f"{name} must end at the number of "
                                "packed rows, batch * positions")
        elif int(each[-1]) != shape.batch * rows:
            raise _refuse(words, f"do not fit: {name} ends at {int(each[-1])}, expected "
                          f"{shape.batch * rows}, the rows of {shape.batch} x {rows} tokens")
    return starts


def _longest(name: str, value: Any) -> Any:
    if value is None:
        return 0
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_floating_point():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        given = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ArgumentError(f"{name} ({given}) must be an integer, the longest length or more")
    return value


def _of_starts(words: dict[str, Any], starts: list[Tensor], shape: Shape, named: str) -> Sequences:
    batch, rows, keys = shape[:3]
    longest = [_longest(name, words.get(name)) for name in ("max_length_q", "max_length_k")]
    return Sequences(_ids_of_starts(starts[0], batch, rows), _ids_of_starts(starts[1], batch, keys),
                     starts[0], starts[1], longest[0], longest[1], named)


def _check_agree(words: dict[str, Any], found: Tensor | None, starts: Tensor, other: str) -> None:
    if found is None:
        return
    starts = starts[torch.cat([starts[1:] != starts[:-1], torch.ones_like(starts[:1]).bool()])]
    if not torch.equal(found.long(), starts.long()):  # those that are not empty
        raise _refuse(words, f"contradict {other}: sequences begin at {starts[:-1].tolist()} and at "
                      f"{found[:-1].tolist()}")


def _of_seq_idx(words: dict[str, Any], shape: Shape) -> Tensor:
    ids = words["seq_idx"]
    if not isinstance(ids, Tensor) or ids.dim() != 2 or shape.rows != shape.keys or (
            tuple(ids.shape) not in ((shape.batch, shape.rows), (1, shape.rows))):
        raise _refuse(words, "do not fit: seq_idx must be a tensor [batch, positions], the number of "
                      f"each token's sequence, for [{shape.batch}, {shape.rows}] queries and "
                      f"{shape.keys} keys")
    return ids.expand(shape.batch, -1)


def _make_sequences(words: dict[str, Any], positions: Tensor | None,
                    shape: Shape) -> Sequences | None:
    begins = None
    if isinstance(positions, Tensor) and shape.is_causal and shape.rows > 1 and not (
            words and torch.compiler.is_compiling()):
        begins = _begins_of_positions(positions, shape)
    restarts = None if begins is None else _starts_of_begins(begins)
    ids, of_ids = None, None
    if words.get("seq_idx") is not None:
        ids = _of_seq_idx(words, shape)
        if torch.compiler.is_compiling() and len(words) == 1:
            return Sequences(ids, ids, None, None, 0, 0, "seq_idx")
        if not torch.compiler.is_compiling():
            changes = torch.cat([torch.ones_like(ids[:, :1], dtype=torch.bool),
                                 ids.diff(dim=-1) != 0], 1)
            of_ids = _starts_of_begins(changes)
    if words.keys() - {"seq_idx"}:
        starts = _given_starts(words, shape)
        _check_agree(words, of_ids, starts[0], "seq_idx")
    elif of_ids is not None:
        starts = [of_ids, of_ids]
    elif restarts is not None:
        if shape.keys < shape.rows:
            raise ArgumentError("position_ids of packed sequences beside a cache of fewer keys are not "
                                "supported; expected use_cache=False")
        shape = shape._replace(keys=shape.rows)  # those of a static cache behind them are empty
        starts = [restarts, restarts]
    else:
        return None
    if words:
        _check_agree(words, restarts, starts[0], "position_ids")
    return _of_starts(words, starts, shape, ", ".join(sorted(words)))


def sequences_of(words: dict[str, Any], positions: Any, shape: Shape, device: torch.device,
                 has_mask: bool) -> Sequences | None:
    """The sequences that the keywords or the position_ids of a layer mark; None where it is one.
    `device`: of its queries; `has_mask`: whether the layer has a mask."""
    for name in (*_STARTS, "seq_idx"):
        given = words.get(name)
        if isinstance(given, Tensor) and given.device != device:
            raise ArgumentError(f"device of {name} ({given.device}) must be the queries', {device}")
    if not words and (shape.rows <= 1 or not shape.is_causal or not isinstance(positions, Tensor)):
        return None
    if not words and has_mask and torch.compiler.is_compiling() and (
            shape.keys >= shape.rows and shape.chunk is None):
        return _traced_sequences(positions, shape)
    longest = [words.get(name) for name in ("max_length_q", "max_length_k")]
    tensors = (positions if isinstance(positions, Tensor) else None,
               *(words.get(name) for name in (*_STARTS, "seq_idx")),
               *(x if isinstance(x, Tensor) else None for x in longest))
    values = (shape, *(None if isinstance(x, Tensor) else x for x in longest))
    if any(x is not None and not isinstance(x, Tensor) for x in tensors):
        return _make_sequences(words, positions, shape)
    made: Sequences | None = _recent_sequences.get(tensors, values, lambda: _make_sequences(
        words, positions, shape))
    return made


def _within(sequences: Sequences, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """[batch, 1, rows, keys]: pairs of one sequence, and those that its rules let a query see."""
    same = sequences.ids_q[:, None, :, None] == sequences.ids_kv[:, None, None, :]
    same = same.to(device)
    distances = (torch.arange(shape.rows, device=device)[:, None] -
                 torch.arange(same.shape[-1], device=device))
    expected = same
    if shape.is_causal:
        expected = expected & (distances >= 0)
    if shape.window is not None:
        expected = expected & ((distances if shape.is_causal else distances.abs()) < shape.window)
    if shape.chunk is not None:
        chunks = (_places(sequences.ids_q) // shape.chunk, _places(sequences.ids_kv) // shape.chunk)
        expected = expected & (chunks[0][:, None, :, None] == chunks[1][:, None, None, :])
    return same, expected


def _places(ids: Tensor) -> Tensor:
    """The position of each token in its sequence, which lies in one row."""
    index = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    begins = torch.nn.functional.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)
    return index - torch.where(begins, index, 0).cummax(1).values


def _by_chunks(sequences: Sequences, mask: Tensor, shape: Shape) -> Attention:
    """Chunks are those of each sequence, and a mask's are often those of the whole row."""
    same, expected = _within(sequences, shape, mask.device)
    one = sequences._replace(ids_q=torch.zeros_like(sequences.ids_q),
                             ids_kv=torch.zeros_like(sequences.ids_kv))
    of_row = _within(one, shape, mask.device)[1]
    visible = _visible(mask)
    agrees = ((visible & same) == expected).all() | (visible == of_row).all()
    if mask.dtype != torch.bool:
        agrees = agrees & ((mask == 0) | ~visible).all()
    message = (f"contradicts {sequences.named or 'position_ids'} (of packed sequences) in a layer with "
               f"chunks of {shape.chunk}: expected no mask beside them, or one of chunks and nothing "
               "else")
    if torch.compiler.is_compiling():  # a compiled message has no extents, which may be symbols
        torch._assert_async(agrees, "attention_mask " + message)
    elif not agrees:
        raise ArgumentError(f"attention_mask (of shape {tuple(mask.shape)}) {message}")
    return Attention(False, expected)


def _pad_keys(sequences: Sequences, mask: Tensor, shape: Shape) -> Sequences:
    """The same on a static cache, whose places behind the rows hold no keys yet."""
    behind = mask.shape[-1] - sequences.ids_kv.shape[1]
    if behind <= 0:
        return sequences
    if not torch.compiler.is_compiling() and bool(_visible(mask)[..., -behind:].any()):
        raise ArgumentError("position_ids of packed sequences beside a cache that holds earlier keys are "
                            "not supported; expected an empty cache, or use_cache=False")
    return sequences._replace(ids_kv=torch.nn.functional.pad(sequences.ids_kv, (0, behind),
                                                             value=-1))


def _visible(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min


def _restricted(mask: Tensor, same: Tensor) -> Tensor:
    return mask & same if mask.dtype == torch.bool else mask.masked_fill(~same, float("-inf"))


def _make_attention(sequences: Sequences, mask: Tensor, shape: Shape) -> Attention:
    sequences = _pad_keys(sequences, mask, shape)
    if shape.chunk is not None:
        return _by_chunks(sequences, mask, shape)
    same, expected = _within(sequences, shape, mask.device)
    visible = _visible(mask)
    if shape.rows == shape.keys and sequences.named:
        message = (f"attention_mask (of shape {tuple(mask.shape)}) contradicts {sequences.named} (of "
                   "packed sequences): it hides keys of a query's own sequence; expected no mask, or "
                   "position_ids that begin anew at each sequence")
        required = expected if shape.is_causal else torch.eye(
            shape.rows, dtype=torch.bool, device=mask.device)
        agrees = ~(required & ~visible).any()
        if torch.compiler.is_compiling():
            torch._assert_async(agrees, message)
        elif not agrees:
            raise ArgumentError(message)
    if torch.compiler.is_compiling() or shape.rows != shape.keys:
        return Attention(False, _restricted(mask, same))
    adds = mask.dtype != torch.bool and bool((visible & same & (mask != 0)).any())
    if not adds and torch.equal(visible & same, expected.expand(torch.broadcast_shapes(
            visible.shape, expected.shape))):
        return Attention(True, None)
    return Attention(False, _restricted(mask, same))


def _check_mask(mask: Tensor, shape: Shape) -> None:
    if mask.dim() == 4 and mask.shape[0] in (1, shape.batch) and (
            mask.shape[2] in (1, shape.rows) and mask.shape[3] in (1, shape.keys)):
        return
    raise ArgumentError(f"attention_mask (of shape {tuple(mask.shape)}) must be [batch, heads, queries, "
                        f"keys] for [{shape.batch}, {shape.rows}] queries on {shape.keys} keys")


def attention_of(sequences: Sequences, mask: Tensor | None, shape: Shape,
                 needs_mask: bool) -> Attention:
    """How to compute these sequences. Raises where the mask contradicts keywords; `needs_mask`:
    where no packed call can compute what the layer wants."""
    if mask is not None:
        _check_mask(mask, shape)
    if mask is None:
        if not needs_mask and sequences.starts_q is not None:
            return Attention(True, None)
        if shape.rows != shape.keys:
            raise ArgumentError(f"{sequences.named or 'position_ids'} (of packed sequences) with "
                                f"{shape.rows} queries on {shape.keys} keys need a mask here")
        return Attention(False, _within(sequences, shape, sequences.ids_q.device)[1])
    made: Attention = _recent_attention.get(
        (mask, sequences.ids_q), shape, lambda: _make_attention(sequences, mask, shape))
    if made.packed and (needs_mask or sequences.starts_q is None):
        return Attention(False, _restricted(mask, _within(sequences, shape, mask.device)[0]))
    return made


def attend(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, options: Options,
           backends: str) -> Tensor:
    """out [B,S,H,D] of [B,H,S,D] tensors whose rows are one packed row after another."""
    def rows(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    keys = sequences.ids_kv.shape[1]  # less than k has, where it is a static cache
    options = options._replace(
        diagonal="bottom_right",  # as flash-attention's where lengths differ
        cu_seqlens_q=sequences.starts_q, cu_seqlens_kv=sequences.starts_kv,
        max_seqlen_q=sequences.longest_q, max_seqlen_kv=sequences.longest_kv)
    out, _ = attend_packed(rows(q), rows(k[:, :, :keys]), rows(v[:, :, :keys]), options,
                           backends=backends)
    return out.unflatten(0, (q.shape[0], q.shape[2])).contiguous()
