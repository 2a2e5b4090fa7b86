"""regard under names with "flash" in them, for what Transformers gives to such names alone.

generate_batch passes the rows of all requests and their cu_seq_lens to a name with "flash" in it, and
vision towers pass all images of a batch in one call. Each name of regard therefore has an alias; a
configuration holds the alias while generate_batch runs, and in a vision tower.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _packed_rows
from ._patches import Patches
from .flash_attn._arguments import options_of
from .torch import _call
from .torch._options import Options
from .torch._scopes import ArgumentError

SUFFIX = "_as_flash"
ADDED_MASKS = "_added_masks"  # the suffix of names whose masks are added to the scores
_MIN_VERSION, _NEXT_MAJOR = (5, 23), 6
# What generate_batch passes to each layer for the cache and for the logits.
_OF_THE_CACHE = frozenset({"read_index", "write_index", "block_table", "logits_indices",
                           "logits_processor_args"})


def alias_of(name: str) -> str:
    return name + SUFFIX


def is_alias(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(SUFFIX)


def _does_not_fit(what: str, why: str) -> RuntimeError:
    import transformers

    return RuntimeError(f"regard.transformers.{what}() does not support Transformers "
                        f"{transformers.__version__}: {why}; expected a version from "
                        f"{'.'.join(map(str, _MIN_VERSION))} to before {_NEXT_MAJOR}")


def _check_signature(what: str, owner: Any, name: str, parameters: tuple[str, ...]) -> None:
    function = getattr(owner, name, None)
    if function is None:
        raise _does_not_fit(what, f"{owner.__name__} has no {name}")
    found = tuple(inspect.signature(function).parameters)
    if found != parameters:
        raise _does_not_fit(what, f"{owner.__name__}.{name} takes {', '.join(found)}, not "
                            f"{', '.join(parameters)}")


def check_version(what: str) -> None:
    """Raises RuntimeError, with the version, where the caller `what` does not fit Transformers."""
    import transformers
    from transformers import modeling_flash_attention_utils as utils

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if not _MIN_VERSION <= version < (_NEXT_MAJOR,):
        raise _does_not_fit(what, "it was written for another version")
    _check_signature(what, utils, "_lazy_imports", ("implementation", "attention_wrapper",
                                                    "allow_all_kernels"))
    _check_signature(what, utils, "_pad_input", ("hidden_states", "indices", "batch", "seqlen"))
    _check_signature(what, utils, "_unpad_input", ("hidden_states", "attention_mask",
                                                   "unused_mask"))


def check_continuous_batching(what: str) -> None:
    """The same for the functions of continuous batching."""
    try:
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.continuous_api import (
            ContinuousBatchingManager,
        )
    except ImportError as error:
        raise _does_not_fit(what, str(error)) from None
    _check_signature(what, ContinuousBatchingManager, "switch_to_cb_friendly_attn",
                     ("self", "model", "auto_switch_to_flash"))
    _check_signature(what, PagedAttentionCache, "update", ("self", "key_states", "value_states",
                                                           "layer_idx", "kwargs"))


def _refuse_what_flash_ignores(weights: bool, keywords: dict[str, Any]) -> None:
    if weights or keywords.get("output_attentions"):
        raise ArgumentError("output_attentions (True) is not supported in generate_batch and beside a "
                            "mask [batch, positions]; expected False")
    if keywords.get("position_bias") is not None:
        raise ArgumentError("position_bias is not supported in generate_batch and beside a mask [batch, "
                            "positions]; expected None")


class Alias(NamedTuple):
    """What an alias computes with."""

    name: str
    backend: str                  # that it forces; "" for none
    attend: Callable[..., Any]    # the attention function of the name without the alias
    collects: Callable[[], bool]  # whether Transformers collects weights


_Tensors = tuple[Tensor, Tensor, Tensor]  # query, key and value, [B,H,S,D]


def _attend_paged(backend: str, module: torch.nn.Module, tensors: _Tensors,
                  keywords: dict[str, Any]) -> Tensor:
    """A step of generate_batch: the new rows of each request on all of its keys in the cache."""
    query, key, value = tensors
    take = keywords.pop
    cache, dropout, is_causal = take("cache"), take("dropout", 0.0), take("is_causal", True)
    if keywords.get("block_table") is not None:
        raise ArgumentError("block_table is not supported: keys and values must be read from the cache "
                            "by index; expected max_blocks_per_request=0 in ContinuousBatchingConfig")
    if is_causal is False:
        raise ArgumentError("is_causal (False) is not supported in generate_batch; expected True")
    if dropout:
        raise ArgumentError(f"dropout ({dropout}) must be 0 in generate_batch; expected model.eval()")
    window, sinks = take("sliding_window", None), take("s_aux", None)
    scale, softcap = take("scaling", None), take("softcap", None)
    _packed_rows.check_keywords({name: given for name, given in keywords.items()
                                 if name not in _OF_THE_CACHE})
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx,
                              kwargs=keywords)  # which states the cu_seq_lens_k of this layer
    options = Options(
        sinks=sinks, softmax_scale=scale, softcap=softcap or 0.0, is_causal=True,
        diagonal="bottom_right", window_left=-1 if window is None else window - 1,
        cu_seqlens_q=keywords["cu_seq_lens_q"], cu_seqlens_kv=keywords["cu_seq_lens_k"],
        max_seqlen_q=int(keywords["max_length_q"]), max_seqlen_kv=int(keywords["max_length_k"]))
    out, _ = _call.attend(query, key, value, options, backends=backend)
    return out


def _attend_padded(name: str, is_causal: bool, tensors: _Tensors,
                   keywords: dict[str, Any]) -> Tensor:
    """By Transformers' own function for flash-attention, which unpads rows by a mask [batch,
    positions] or finds sequences by position_ids, and calls ours."""
    from transformers.modeling_flash_attention_utils import _flash_attention_forward

    query, key, value = tensors
    take = keywords.pop
    mask = take("attention_mask")
    options = {name: take(name, None) for name in ("sliding_window", "softcap", "s_aux",
                                                   "position_ids")}
    scale, dropout = take("scaling", None), take("dropout", 0.0)
    packed = _packed_rows.check_keywords(keywords)
    if mask is not None and mask.shape[0] != query.shape[0]:
        raise ArgumentError(f"attention_mask (of shape {tuple(mask.shape)}) must be [batch, positions] "
                            f"for a batch of {query.shape[0]}")
    if packed:
        raise ArgumentError(f"attention_mask beside {', '.join(sorted(packed))} (of packed sequences) "
                            "contradicts them; expected one of both")
    result: Tensor = _flash_attention_forward(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, query.shape[2],
        dropout=dropout, softmax_scale=scale, attn_implementation=name,
        is_causal=is_causal, **options)
    return result.transpose(1, 2)


def attention(alias: Alias, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
              attention_mask: Tensor | None, **keywords: Any) -> tuple[Tensor, Tensor | None]:
    """Transformers' attention function of an alias: takes [B,H,S,D], returns [B,S,H,D] and weights
    or None."""
    tensors = (query, key, value)
    if keywords.get("cache") is not None:
        if attention_mask is not None:
            raise ArgumentError(f"attention_mask (of shape {tuple(attention_mask.shape)}) is not "
                                "supported in generate_batch; expected None: causal, with windows")
        _refuse_what_flash_ignores(alias.collects(), keywords)
        out = _attend_paged(alias.backend, module, tensors, keywords)
        return out.transpose(1, 2).contiguous(), None
    is_causal = keywords.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    by_positions = (attention_mask is None and not is_causal and
                    keywords.get("cu_seq_lens_q") is None and
                    isinstance(keywords.get("position_ids"), Tensor))
    if by_positions or attention_mask is not None and attention_mask.dim() == 2:
        _refuse_what_flash_ignores(alias.collects(), keywords)
        keywords = {**keywords, "attention_mask": attention_mask}
        keywords.pop("is_causal", None)
        out = _attend_padded(alias.name, is_causal, tensors, keywords)
        return out.transpose(1, 2).contiguous(), None
    result: tuple[Tensor, Tensor | None] = alias.attend(module, query, key, value, attention_mask,
                                                        **keywords)
    return result


# The mask functions of Transformers that a causal call, its window and its sequences contain.
_CONTAINED = frozenset({
    "causal_mask_function", "bidirectional_mask_function", "and_masks.<locals>.and_mask",
    "sliding_window_overlay.<locals>.inner_mask",
    "packed_sequence_mask_function.<locals>.inner_mask",
    "remap_positions_for_packed_sequence.<locals>.inner_mask"})


def _is_contained(function: Any) -> bool:
    if getattr(function, "__qualname__", "") not in _CONTAINED:
        return False
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    functions = [each for x in held for each in (x if isinstance(x, tuple) else (x,))]
    return all(_is_contained(each) for each in functions if callable(each) and
               not isinstance(each, Tensor))


def mask(make: Callable[..., Tensor | None], *args: Any, **keywords: Any) -> Tensor | None:
    """The mask function of the aliases: None where the attention function knows the same from its
    other arguments, else what `make` makes."""
    offsets = keywords.get("q_offset", 0), keywords.get("kv_offset", 0)
    if not args and keywords.get("attention_mask") is None and (
            keywords.get("q_length") == keywords.get("kv_length") and
            all(isinstance(x, int) and x == 0 for x in offsets)):
        # torch.compile does not trace what a closure holds. use_vmap is set for a model's own masks.
        if not keywords.get("use_vmap") if torch.compiler.is_compiling() else (
                _is_contained(keywords.get("mask_function"))):
            return None
    return make(*args, **keywords)


def _dense(backend: str, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
           softmax_scale: float | None = None, causal: bool = False,
           window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
           s_aux: Tensor | None = None, **packed: Any) -> Tensor:
    """flash_attn_func with sinks: q, k and v [batch, positions, heads, head_dim]; returns out."""
    options = options_of(q, softmax_scale, causal, window_size, softcap, None, float(dropout_p))
    options = options._replace(sinks=s_aux, **packed)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out, _ = _call.attend(q, k, v, options, backends=backend)
    return out.transpose(1, 2)


def _varlen(backend: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor,
            cu_seqlens_k: Tensor, max_seqlen_q: Any, max_seqlen_k: Any, dropout_p: float = 0.0,
            softmax_scale: float | None = None, causal: bool = False,
            window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
            s_aux: Tensor | None = None) -> Tensor:
    """flash_attn_varlen_func with sinks: q, k and v [total, heads, head_dim]; returns out."""
    return _dense(backend, q[None], k[None], v[None], dropout_p, softmax_scale, causal, window_size,
                  softcap, s_aux, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_k,
                  max_seqlen_q=int(max_seqlen_q), max_seqlen_kv=int(max_seqlen_k))[0]


def _importing(lazy_imports: Callable[..., Any], backends: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(lazy_imports)
    def imported(implementation: str | None, *args: Any, **keywords: Any) -> Any:
        if implementation not in backends:
            return lazy_imports(implementation, *args, **keywords)
        from transformers import modeling_flash_attention_utils as utils

        backend = backends[implementation]
        return (functools.partial(_dense, backend), functools.partial(_varlen, backend), None,
                utils._pad_input, utils._unpad_input)

    return imported


class Aliases(Patches):
    """The aliases of `names`, each with the backend that it forces, in Transformers."""

    def __init__(self, names: dict[str, str], attend: Callable[..., Any],
                 collects: Callable[[], bool], make_mask: Callable[..., Tensor | None]) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers import modeling_flash_attention_utils as utils

        super().__init__()
        for name, backend in names.items():
            name = alias_of(name)
            alias = Alias(name, backend, functools.partial(attend, backend), collects)
            self.put(AttentionInterface._global_mapping, name, functools.partial(attention, alias))
            self.put(AttentionMaskInterface._global_mapping, name,
                     functools.partial(mask, make_mask))
        backends = {alias_of(name): backend for name, backend in names.items()}
        self.set(utils, "_lazy_imports", _importing(utils._lazy_imports, backends))

    def undo(self) -> None:
        from transformers import modeling_flash_attention_utils as utils

        super().undo()
        if is_alias(utils._loaded_implementation):  # forget our functions
            utils._loaded_implementation = None


def _implementations(config: Any) -> Any:
    """What set_attn_implementation takes: the name of each part of a configuration."""
    parts = {key: _implementations(part) for key in config.sub_configs
             if (part := getattr(config, key, None)) is not None}
    own = config._attn_implementation
    return {"": own, **parts} if parts else own


def _with_aliases(names: Any, ours: frozenset[str]) -> Any:
    if isinstance(names, dict):
        return {key: _with_aliases(each, ours) for key, each in names.items()}
    return alias_of(names) if names in ours else names


class ContinuousBatching(Patches):
    """generate_batch with regard's names: a manager gives the model's configuration their aliases,
    and puts the names back when it stops."""

    def __init__(self, names: dict[str, str]) -> None:
        from transformers.generation.continuous_batching.continuous_api import (
            ContinuousBatchingManager as Manager,
        )

        super().__init__()
        ours, switch = frozenset(names), Manager.switch_to_cb_friendly_attn

        @functools.wraps(switch)
        def switched(self: Any, model: Any, auto_switch_to_flash: bool = True) -> None:
            before = _implementations(model.config)
            after = _with_aliases(before, ours)
            if after == before:
                switch(self, model, auto_switch_to_flash)
                return
            try:
                model.set_attn_implementation(after)
                switch(self, model, auto_switch_to_flash)
            except BaseException:
                model.set_attn_implementation(before)
                raise
            self._original_attn_impl = before

        self.set(Manager, "switch_to_cb_friendly_attn", switched)


def check_alias(model: type, name: str) -> None:
    """Refuses an alias for a class that does not support flash-attention."""
    if not getattr(model, "_supports_flash_attn", False):
        raise ArgumentError(f"attn_implementation={name.removesuffix(SUFFIX)!r}: {model.__name__} does "
                            "not support packed sequences without a mask, which generate_batch needs; "
                            "expected 'sdpa' or 'eager' for generate_batch")


@functools.lru_cache(maxsize=None)
def _packing_configs(module_name: str) -> frozenset[Any]:
    """The configurations that a module's attention classes name as theirs, where these classes split
    a batch unless the name of the implementation holds "flash"."""
    module, found = sys.modules[module_name], set()
    for each in vars(module).values():
        if not (isinstance(each, type) and issubclass(each, torch.nn.Module)) or (
                each.__module__ != module_name):
            continue
        try:
            source = inspect.getsource(each.forward)
        except (OSError, TypeError):
            continue
        if all(word in source for word in ("is_flash_attention_requested(self.config)",
                                           "cu_seq_lens_q=", "torch.split(")):
            config = inspect.signature(each.__init__).parameters.get("config")
            found.add(None if config is None else config.annotation)
    return frozenset(found)


def splits_unless_flash(model: type) -> bool:
    """Whether a class is a vision tower that passes its images one by one to names without "flash".
    """
    if not getattr(model, "_supports_flash_attn", False):
        return False
    config = getattr(model, "config_class", None)
    known = _packing_configs(model.__module__)
    return config is not None and (config in known or config.__name__ in known)
