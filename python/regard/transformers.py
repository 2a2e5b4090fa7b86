"""regard for Hugging Face Transformers.

    regard.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="regard")
    model.set_attn_implementation("regard_math")  # one backend alone

registers the attention function and its mask function: a name without the latter would be given no
mask at all. FLASH alone is "regard_flash", which a model's configuration then holds as
"regard_FLASH": Transformers takes every name with a small "flash" in it for the flash-attn package,
looks for its kernels, and gives some models another implementation instead.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor

from .torch import _call
from .torch._formula import dropout_factors, formula
from .torch._options import Options, seed_of
from .torch._scopes import SdpaError

_active_collector: Any = None  # before Transformers 5 every layer passes output_attentions on
with contextlib.suppress(ImportError):
    from transformers.utils.output_capturing import _active_collector

__all__ = ["IMPLEMENTATIONS", "register"]

# The implementations' names, and the backend that each one forces.
IMPLEMENTATIONS = {"regard": "", "regard_math": "math", "regard_efficient": "efficient",
                   "regard_flash": "flash", "regard_MATH": "math", "regard_EFFICIENT": "efficient",
                   "regard_FLASH": "flash"}

# Keywords that models hand through their layers and that say nothing of one attention: what they
# mean for it is in the mask, the cache or the layer already.
_ELSEWHERE = frozenset({
    "cache_position", "decoder_input_ids", "deterministic", "encoder_attention_mask",
    "encoder_hidden_states", "input_ids", "labels", "logits_to_keep", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "past_key_value", "past_key_values",
    "position_embeddings", "position_ids", "return_dict", "return_loss", "token_type_ids",
    "use_cache"})
# Sequences packed in one row: flash-attention's own words. A mask says it as well, where there is
# one.
_PACKED = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"})


def _check_keywords(keywords: dict[str, Any], attention_mask: Tensor | None) -> None:
    for name, value in keywords.items():
        if value is None or value is False or name in _ELSEWHERE:
            continue
        if name in _PACKED:
            if attention_mask is not None:
                continue
            raise SdpaError(f"{name} (of packed sequences) is not supported without a mask that "
                            "says the same; expected an attention_mask or position_ids")
        text = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise SdpaError(f"{name} ({text}) is not supported by attn_implementation='regard'; "
                        "accepted are dropout, scaling, is_causal, sliding_window, softcap, s_aux, "
                        "position_bias and output_attentions")


def _add_mask(options: Options, mask: Tensor | None, position_bias: Tensor | None) -> Options:
    """The mask of a model, True = may attend or added to the scores, beside T5's bias."""
    for name, tensor in (("attention_mask", mask), ("position_bias", position_bias)):
        if tensor is not None and tensor.dim() != 4:
            raise SdpaError(f"{name} (of shape {tuple(tensor.shape)}) must be [batch, heads, "
                            "queries, keys]")
    if mask is None:
        return options._replace(attn_bias=position_bias)
    if mask.dtype == torch.bool:
        return options._replace(attn_mask=mask, attn_bias=position_bias)
    if not mask.is_floating_point():
        raise SdpaError(f"dtype of attention_mask ({mask.dtype}) must be torch.bool (True = may "
                        "attend) or a float type, which is added to the scores")
    return options._replace(attn_bias=mask if position_bias is None else mask + position_bias)


def _add_causal(options: Options, is_causal: bool, sliding_window: int | None, rows: int,
                keys: int) -> Options:
    """What a model without a mask means: a mask holds all of it where there is one."""
    if is_causal:  # a prefill, into an empty static cache where there are more keys than rows
        options = options._replace(is_causal=True)
    if sliding_window is not None and keys > sliding_window:
        options = options._replace(window_left=sliding_window - 1,
                                   diagonal="top_left" if is_causal else "bottom_right")
    return options


def _collects_weights() -> bool:
    """Whether a model around the layer was asked for output_attentions: some layers (GPT-2's, OPT's)
    do not pass the word on, and a hook of Transformers takes what they return.
    """
    if _active_collector is None:
        return False
    if torch.compiler.is_compiling() and not _active_collector.compiling:
        return False  # a layer alone; its context variable cannot be traced
    collected = _active_collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


def _with_weights(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """output_attentions: MATH as a formula, whose probabilities have gradients, too."""
    factors = dropout_factors(q, k, options)
    result = formula(q, k, v, options, factors)
    probs = result.probs if factors is None else result.probs * factors
    return result.out, probs.to(q.dtype)


def _attention(backend: str, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
               attention_mask: Tensor | None, **keywords: Any) -> tuple[Tensor, Tensor | None]:
    """Transformers' attention function: [B,H,S,D] tensors in, [B,S,H,D] and perhaps weights out."""
    take = keywords.pop
    dropout, scaling = take("dropout", 0.0), take("scaling", None)
    is_causal, window = take("is_causal", None), take("sliding_window", None)
    softcap, sinks = take("softcap", None), take("s_aux", None)
    position_bias, weights = take("position_bias", None), take("output_attentions", False)
    _check_keywords(keywords, attention_mask)
    if query.shape[0] == 1 < key.shape[0]:  # learned queries, the same for every sequence
        query = query.expand(key.shape[0], -1, -1, -1)
    rows, keys = query.shape[2], key.shape[2]
    options = Options(sinks=sinks, softmax_scale=scaling, softcap=softcap or 0.0)
    options = _add_mask(options, attention_mask, position_bias)
    if attention_mask is None:
        is_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        options = _add_causal(options, bool(rows > 1 and is_causal), window, rows, keys)
    drop_all = dropout == 1.0
    if dropout and not drop_all:
        options = options._replace(dropout_p=float(dropout), rng=seed_of(query))
    if weights or _collects_weights():
        if backend not in ("", "math"):
            raise SdpaError(f"output_attentions (True) needs MATH; expected attn_implementation "
                            f"'regard' or 'regard_math', not 'regard_{backend.upper()}'")
        out, probs = _with_weights(query, key, value, options)
    else:
        (out, _), probs = _call.attend(query, key, value, options, backends=backend), None
    if drop_all:
        out, probs = out * 0.0, None if probs is None else probs * 0.0
    return out.transpose(1, 2).contiguous(), probs


def _translate_small_flash() -> None:
    """Makes "regard_flash" "regard_FLASH" where Transformers checks the name for a model, or for a
    part of one.
    """
    from transformers import PreTrainedModel

    for name in ("_check_and_adjust_attn_implementation", "get_correct_attn_implementation"):
        check = getattr(PreTrainedModel, name)
        if not hasattr(check, "translates_regard_flash"):
            setattr(PreTrainedModel, name, _translating(check))


def _translating(check: Any) -> Any:
    @functools.wraps(check)
    def translated(model: Any, attn_implementation: str | None, *args: Any, **keywords: Any) -> str:
        if attn_implementation == "regard_flash":
            attn_implementation = "regard_FLASH"
        return check(model, attn_implementation, *args, **keywords)

    setattr(translated, "translates_regard_flash", True)
    return translated


def register() -> None:
    """Registers each of IMPLEMENTATIONS with Transformers; again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for name, backend in IMPLEMENTATIONS.items():
        AttentionInterface.register(name, functools.partial(_attention, backend))
        # sdpa's masks: bool, True = may attend; none where is_causal says it all.
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    _translate_small_flash()
