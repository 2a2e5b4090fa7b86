"""regard for Hugging Face Transformers.

    regard.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="regard")
    model.set_attn_implementation("regard_math")  # one backend alone

register() registers an attention function and a mask function for each name; without the latter
Transformers would pass no mask at all. The model's configuration has another name in three cases:

* FLASH alone is "regard_FLASH" there, because Transformers takes every name with a lower-case
  "flash" in it for the flash-attn package and gives some models another implementation.
* Models that support eager's masks alone have "regard_added_masks" and the like. Their masks are
  floats that are added to the scores, and None where every key may be attended.
* While generate_batch runs, and in vision towers, it is "regard_as_flash" and the like, once
  enable_continuous_batching() or enable_packed_vision() was called.

A model that does not take its attention from Transformers' interface is refused, as sdpa refuses
it: Transformers would pass it masks in a form that its code does not read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import _as_flash, _mask_functions, _packed_rows, _row_handles
from ._explain_model import LayerSelection, ModelSelection, explain
from ._patches import Patches
from .torch import _call
from .torch._formula import dropout_factors, traced_formula
from .torch._options import Options, seed_of
from .torch._scopes import ArgumentError, current_ranks

_active_collector: Any = None  # none before Transformers 5, where layers pass output_attentions
with contextlib.suppress(ImportError):
    from transformers.utils.output_capturing import _active_collector

__all__ = ["IMPLEMENTATIONS", "Cache", "LayerSelection", "ModelSelection", "enable_continuous_batching",
           "enable_packed_vision", "explain", "register", "unregister"]

if TYPE_CHECKING:
    from ._transformers_cache import Cache


def __getattr__(name: str) -> Any:
    """Cache, a subclass of Transformers' own, which `import regard.transformers` does not need."""
    if name != "Cache":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._transformers_cache import Cache

    return Cache


# The names of attn_implementation, and the backend that each one forces.
IMPLEMENTATIONS = {"regard": "", "regard_math": "math", "regard_efficient": "efficient",
                   "regard_flash": "flash", "regard_MATH": "math", "regard_EFFICIENT": "efficient",
                   "regard_FLASH": "flash"}


def _add_mask(options: Options, mask: Tensor | None, position_bias: Tensor | None) -> Options:
    """Adds a model's mask (bool, True = may attend; float: added to the scores) and T5's bias."""
    for name, tensor in (("attention_mask", mask), ("position_bias", position_bias)):
        if tensor is not None and tensor.dim() != 4:
            raise ArgumentError(f"{name} (of shape {tuple(tensor.shape)}) must be [batch, heads, "
                                "queries, keys]")
    if mask is None:
        return options._replace(attn_bias=position_bias)
    if mask.dtype == torch.bool:
        return options._replace(attn_mask=mask, attn_bias=position_bias)
    if not mask.is_floating_point():
        raise ArgumentError(f"dtype of attention_mask ({mask.dtype}) must be torch.bool (True = may "
                            "attend) or a float type, which is added to the scores")
    return options._replace(attn_bias=mask if position_bias is None else mask + position_bias)


def _choose_keys(mask: Tensor, indices: Tensor) -> Tensor:
    """The mask restricted to the keys [batch, queries, n] that a row selects (DeepSeek-V3.2)."""
    chosen = torch.zeros((), dtype=torch.bool, device=mask.device).expand(
        indices.shape[0], 1, indices.shape[1], mask.shape[-1])
    chosen = chosen.scatter(-1, indices.long()[:, None], True)
    if mask.dtype == torch.bool:
        return mask & chosen
    return mask.masked_fill(~chosen, float("-inf"))


def _add_causal(options: Options, is_causal: bool, sliding_window: int | None, keys: int,
                on_ranks: bool) -> Options:
    """Causality and window of a model without a mask; a mask already contains both."""
    if is_causal:  # a prefill, into an empty static cache where there are more keys than rows
        options = options._replace(is_causal=True)
    if sliding_window is not None and (keys > sliding_window or on_ranks):
        reach = sliding_window - 1  # to both sides in encoders
        options = options._replace(window_left=reach, window_right=-1 if is_causal else reach,
                                   diagonal="top_left" if is_causal else "bottom_right")
    return options


def _chunk_of(module: torch.nn.Module) -> int | None:
    """How many positions a chunk of Llama-4's chunked layers has; None in other layers."""
    config, at = getattr(module, "config", None), getattr(module, "layer_idx", None)
    size = getattr(config, "attention_chunk_size", None)
    kinds = getattr(config, "layer_types", None)
    if not size or not kinds or at is None or kinds[at] != "chunked_attention":
        return None
    return int(size)


def _collects_weights() -> bool:
    """Whether the model has output_attentions set. Some layers (GPT-2's, OPT's) do not pass the
    keyword on; a hook of Transformers collects what they return.
    """
    if _active_collector is None:
        return False
    if torch.compiler.is_compiling() and not _active_collector.compiling:
        return False  # a layer alone; its context variable cannot be traced
    collected = _active_collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


def _with_weights(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Output and probabilities of MATH's formula, both differentiable: output_attentions."""
    factors = dropout_factors(q, k, options)
    result = traced_formula(q, k, v, options, factors)
    probs = result.probs if factors is None else result.probs * factors
    return result.out, probs.to(q.dtype)


def _with_function(query: Tensor, key: Tensor, value: Tensor, mask: _mask_functions.MaskFunction,
                   options: Options, backend: str) -> Tensor:
    """Attention whose mask a function describes."""
    call = _mask_functions.call_of(mask, options)
    made = _row_handles.attend(query, key, value, options, backend, call)
    if made is None:
        key, value = _row_handles.plain(key, value)
        with torch.autocast("cpu", enabled=False):
            made, _ = _mask_functions.attend(query, key, value, call, backends=backend)
    return made


def _attention(backend: str, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
               attention_mask: Tensor | None, **keywords: Any) -> tuple[Tensor, Tensor | None]:
    """Transformers' attention function: takes [B,H,S,D], returns [B,S,H,D] and weights or None."""
    take = keywords.pop
    dropout, scaling = take("dropout", 0.0), take("scaling", None)
    is_causal, window = take("is_causal", None), take("sliding_window", None)
    softcap, sinks = take("softcap", None), take("s_aux", None)
    position_bias, weights = take("position_bias", None), take("output_attentions", False)
    if attention_mask is not None and isinstance(keywords.get("indices"), Tensor):
        attention_mask = _choose_keys(attention_mask, take("indices"))
    packed = _packed_rows.check_keywords(keywords)
    if query.shape[0] == 1 < key.shape[0]:  # learned queries, the same for every sequence
        query = query.expand(key.shape[0], -1, -1, -1)
    rows, keys = query.shape[2], key.shape[2]
    on_ranks = current_ranks() is not None  # rows and keys are this rank's, a part of the sequence
    is_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    is_causal = bool((rows > 1 or on_ranks) and is_causal)
    weights = bool(weights or _collects_weights())
    if on_ranks and (packed or weights):
        raise ArgumentError(f"{next(iter(packed), 'output_attentions')} must be left out in context_parallel; "
                            "its cu_seqlens states where documents begin")
    shape = _packed_rows.Shape(query.shape[0], rows, keys, is_causal, window, _chunk_of(module))
    sequences = None if on_ranks else _packed_rows.sequences_of(
        packed, keywords.get("position_ids"), shape, query.device, attention_mask is not None)
    function, as_packed = None, False
    if type(attention_mask) is _mask_functions.MaskFunction:
        function, attention_mask, as_packed = _mask_functions.of_layer(
            attention_mask, query, shape, sequences, weights or position_bias is not None)
    if sequences is not None and function is None and not as_packed:
        as_packed, attention_mask = _packed_rows.attention_of(
            sequences, attention_mask, shape, weights or position_bias is not None)
    options = Options(sinks=sinks, softmax_scale=scaling, softcap=softcap or 0.0)
    options = _add_mask(options, attention_mask, position_bias)
    if attention_mask is None and function is None:
        options = _add_causal(options, is_causal, window, keys, on_ranks)
    drop_all = dropout == 1.0
    if dropout and not drop_all:
        options = options._replace(dropout_p=float(dropout), rng=seed_of(query))
    probs = None
    if weights:
        if backend not in ("", "math"):
            raise ArgumentError(f"output_attentions (True) needs MATH; expected attn_implementation "
                                f"'regard' or 'regard_math', not 'regard_{backend.upper()}'")
        key, value = _row_handles.plain(key, value)
        out, probs = _with_weights(query, key, value, options)
    elif function is not None:
        out = _with_function(query, key, value, function, options, backend)
    elif as_packed and sequences is not None:
        key, value = _row_handles.plain(key, value)
        out = _packed_rows.attend(query, key, value, sequences, options, backend).transpose(1, 2)
    else:
        made = _row_handles.attend(query, key, value, options, backend)
        if made is None:
            key, value = _row_handles.plain(key, value)
            made, _ = _call.attend(query, key, value, options, backends=backend)
        out = made
    if drop_all:
        out, probs = out * 0.0, None if probs is None else probs * 0.0
    return out.transpose(1, 2).contiguous(), probs


def _attention_by_added_masks(backend: str, module: torch.nn.Module, query: Tensor, key: Tensor,
                              value: Tensor, attention_mask: Tensor | None,
                              **keywords: Any) -> tuple[Tensor, Tensor | None]:
    """The same for models with eager's masks, where only a mask hides keys."""
    keywords.update(is_causal=False, sliding_window=None)
    return _attention(backend, module, query, key, value, attention_mask, **keywords)


def _sdpa_mask(*args: Any, config: Any = None, **keywords: Any) -> Tensor | None:
    """sdpa's masks: bool, True = may attend; None where is_causal suffices. It does not suffice for
    Gemma-4's layers that share keys and compute only the last queries. Where a function describes the
    mask, it stays one.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if current_ranks() is not None and not args:
        _mask_functions.check_on_ranks(keywords)
        return None
    if getattr(config, "num_kv_shared_layers", 0):
        keywords["allow_is_causal_skip"] = False
    make = functools.partial(ALL_MASK_ATTENTION_FUNCTIONS["sdpa"], config=config)
    return make(*args, **keywords) if args else _mask_functions.make_mask(make, keywords)


def _reads_added_masks_alone(model: type) -> bool:
    """Whether a class supports no implementation whose masks are bool or None."""
    def claims(*names: str) -> bool:
        return any(getattr(model, f"_supports_{name}", False) for name in names)

    return not (claims("sdpa") or (claims("attention_backend") and claims("flash_attn", "flex_attn")))


def _check_interface(model: type, name: str, is_init: bool) -> None:
    """Refuses a class whose layers do not take their attention from Transformers' interface."""
    module = sys.modules.get(model.__module__)
    if module is None:
        return
    can_set = getattr(model, "_can_set_attn_implementation", lambda: True)()
    if not can_set:  # older code names the interface in another way
        with contextlib.suppress(OSError, TypeError):
            can_set = "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(module)
    if not can_set:
        raise ArgumentError(f"attn_implementation={name!r}: {model.__name__} does not take its attention "
                            "from Transformers' AttentionInterface; expected 'eager' for it (where it is "
                            "a part of a model, a dict of names by part)")
    tables = (value for value in vars(module).values() if isinstance(value, dict))
    if is_init and any(isinstance(table.get("eager"), type) for table in tables):
        raise ArgumentError(f"attn_implementation={name!r}: {model.__name__} looks its layers up by this "
                            "name in a table of its own; expected 'eager' here, and where the model has "
                            f"other parts, model.set_attn_implementation({name!r}) once it is made")


def _translating(check: Any, plain_check: Any) -> Any:
    """A check of PreTrainedModel for regard's names; `plain_check` is the one that looks for no
    kernels."""
    @functools.wraps(check)
    def translated(model: Any, attn_implementation: Any, is_init_check: bool = False, *args: Any,
                   **keywords: Any) -> str:
        name = attn_implementation
        if _installed and isinstance(name, str) and name in IMPLEMENTATIONS:
            _check_interface(type(model), name, is_init_check)
            name = "regard_FLASH" if name == "regard_flash" else name
            if "packed_vision" in _installed and _as_flash.splits_unless_flash(type(model)):
                name = _as_flash.alias_of(name)
            elif _reads_added_masks_alone(type(model)):
                name += _as_flash.ADDED_MASKS
        if _as_flash.is_alias(name) and "aliases" in _installed:
            _as_flash.check_alias(type(model), name)
            return plain_check(model, name, is_init_check)
        return check(model, name, is_init_check, *args, **keywords)

    return translated


def _preprocessing(preprocess: Any) -> Any:
    @functools.wraps(preprocess)
    def preprocessed(config: Any, *args: Any, **keywords: Any) -> Any:
        if (getattr(config, "attention_chunk_size", None) and
                config._attn_implementation in IMPLEMENTATIONS):
            return _packed_rows.sequences_for_masks(preprocess, config, *args, **keywords)
        return preprocess(config, *args, **keywords)

    return preprocessed


class _Registration(Patches):
    """What register() has put into Transformers, and what was there."""

    def __init__(self) -> None:
        from transformers import (
            AttentionInterface,
            AttentionMaskInterface,
            PreTrainedModel,
            masking_utils,
        )

        super().__init__()
        functions = AttentionInterface._global_mapping
        masks = AttentionMaskInterface._global_mapping
        eager_mask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["eager"]
        for name, backend in IMPLEMENTATIONS.items():
            self.put(functions, name, functools.partial(_attention, backend))
            self.put(masks, name, _sdpa_mask)
            name += _as_flash.ADDED_MASKS
            self.put(functions, name, functools.partial(_attention_by_added_masks, backend))
            self.put(masks, name, eager_mask)
        checks = {name: vars(PreTrainedModel)[name] for name in _NAME_CHECKS}
        for name, check in checks.items():
            self.set(PreTrainedModel, name, _translating(check, checks[_PLAIN_CHECK]))
        preprocess = getattr(masking_utils, "_preprocess_mask_arguments", None)
        if preprocess is not None and tuple(
                inspect.signature(preprocess).parameters)[:5] == _MASK_ARGUMENTS:
            self.set(masking_utils, "_preprocess_mask_arguments", _preprocessing(preprocess))


# Where Transformers checks a name for a model, or for a part of one: the model must use the
# interface, and gets the name that its configuration holds.
_PLAIN_CHECK = "get_correct_attn_implementation"
_NAME_CHECKS = ("_check_and_adjust_attn_implementation", _PLAIN_CHECK)
_MASK_ARGUMENTS = ("config", "inputs_embeds", "attention_mask", "past_key_values", "position_ids")
_installed: dict[str, Patches] = {}  # in the order in which they were made
_lock = threading.Lock()


def _install(name: str, make: Callable[[], Patches]) -> None:
    if name not in _installed:
        _installed[name] = make()


def _install_aliases() -> None:
    _install("names", _Registration)
    _install("aliases", lambda: _as_flash.Aliases(IMPLEMENTATIONS, _attention, _collects_weights,
                                                  _sdpa_mask))


def register() -> None:
    """Registers each of IMPLEMENTATIONS with Transformers; again changes nothing.

        >>> import regard.transformers, transformers
        >>> regard.transformers.register()
        >>> config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, vocab_size=99,
        ...                                   num_hidden_layers=1, num_attention_heads=2)
        >>> model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="regard")
        >>> model.config._attn_implementation
        'regard'

    Raises ImportError without Transformers. A model that does not take its attention from
    Transformers' interface raises regard.torch.ArgumentError when it is made.

    More: `python -m regard docs transformers`.
    """
    with _lock:
        _install("names", _Registration)


def enable_continuous_batching() -> None:
    """Lets generate_batch, and everything else that Transformers calls continuous batching, take a
    model with one of IMPLEMENTATIONS; also does what register() does. Again changes nothing.

        >>> import regard.transformers, transformers
        >>> regard.transformers.enable_continuous_batching()
        >>> config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, vocab_size=99,
        ...                                   num_hidden_layers=1, num_attention_heads=2)
        >>> model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="regard")
        >>> model.config._attn_implementation  # model.generate_batch(inputs=[[5, 6, 7], [8, 9]])
        'regard'

    While a manager runs, the model's configuration holds an alias of the name, because Transformers
    batches without a mask only for names with "flash" in them; when it stops, the configuration has
    its names again. Raises RuntimeError where the functions of this version of Transformers are
    others. unregister() undoes it.

    More: `python -m regard docs transformers`.
    """
    with _lock:
        _as_flash.check_version("enable_continuous_batching")
        _as_flash.check_continuous_batching("enable_continuous_batching")
        _install_aliases()
        _install("continuous_batching", lambda: _as_flash.ContinuousBatching(IMPLEMENTATIONS))


def enable_packed_vision() -> None:
    """Lets vision towers that compute their images one by one (those of the Qwen2.5-VL family)
    compute them in one call a layer; also does what register() does. Again changes nothing.

        >>> import regard.transformers
        >>> regard.transformers.enable_packed_vision()
        >>> # then model.set_attn_implementation("regard"), or the name when the model is made

    Call it before the name is set: the configuration of such a tower then holds an alias of the name,
    because they pass all images at once only to names with "flash" in them. Raises RuntimeError where
    the functions of this version of Transformers are others. unregister() undoes it.

    More: `python -m regard docs transformers`.
    """
    with _lock:
        _as_flash.check_version("enable_packed_vision")
        _install_aliases()
        _install("packed_vision", Patches)


def unregister() -> None:
    """Puts back what was in Transformers before register(), enable_continuous_batching() and
    enable_packed_vision(): its tables of attention functions and masks, its checks of their names, and
    the functions that were replaced. Set a model that uses one of IMPLEMENTATIONS to another:
    model.set_attn_implementation("sdpa"). Nothing happens where nothing is registered.

        >>> import regard.transformers
        >>> regard.transformers.register()
        >>> regard.transformers.unregister()

    More: `python -m regard docs transformers`.
    """
    with _lock:
        while _installed:
            _installed.popitem()[1].undo()
