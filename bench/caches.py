#!/usr/bin/env python3
"""Tokens a second of Transformers' generate with each kind of cache, in alternation.

    build/venv-torch/bin/python bench/caches.py                    # after ./dev torch
    build/venv-torch/bin/python bench/caches.py --model large --only dynamic,int8

All on regard's attention, in f32, with the same random weights and prompt. A run generates a text; its
figure is the tokens after the first over the time between the first and the last. Printed are the
median over the rounds, and the median of the ratios to DynamicCache within a round.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

from harness import ratios

MODELS = {
    "tiny": dict(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                 num_attention_heads=4, num_key_value_heads=2),
    "large": dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                  num_attention_heads=9, num_key_value_heads=3),  # 135 million parameters
}
CACHES = {
    "dynamic": None, "static": None, "f32": {"dtype": "f32"}, "bf16": {"dtype": "bf16"},
    "int8": {"dtype": "int8"}, "f32 in pages of 16": {"dtype": "f32", "page_size": 16},
    "f32 in pages of 64": {"dtype": "f32", "page_size": 64},
    "int8 in pages of 64": {"dtype": "int8", "page_size": 64},
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=tuple(MODELS), action="append", help="one of the two (both)")
    add("--only", default="", help="caches, with commas between (all)")
    add("--prompt", type=int, default=512, help="tokens of the prompt (512)")
    add("--tokens", type=int, default=128, help="tokens to generate (128)")
    add("--rounds", type=int, default=5, help="alternations (5)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of PyTorch and regard")
    return parser.parse_args()


def cache_of(name, config, length):
    import transformers

    import regard.transformers

    if name == "dynamic":
        return transformers.DynamicCache(config=config)
    if name == "static":
        return transformers.StaticCache(config=config, max_cache_len=length)
    return regard.transformers.Cache(config, max_cache_len=length, **CACHES[name])


def speed(model, cache, prompt, tokens):
    """Tokens a second after the first."""
    import torch

    times = []

    def finished(ids, scores, **_):
        times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool)

    model.generate(prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache,
                   max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
                   stopping_criteria=[finished], disable_compile=True)
    return (tokens - 1) / (times[-1] - times[0])


def main():
    options = arguments()
    os.environ["REGARD_NUM_THREADS"] = str(options.threads)  # read when regard is imported
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build/dev/python"))
    import torch
    import transformers

    import regard.transformers

    regard.transformers.register()
    torch.set_num_threads(options.threads)
    names = options.only.split(",") if options.only else list(CACHES)
    for size in options.model or MODELS:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**MODELS[size], max_position_embeddings=4096)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="regard").eval()
        prompt = torch.randint(5, 500, (1, options.prompt))
        length = options.prompt + options.tokens
        for name in names:
            speed(model, cache_of(name, config, length), prompt, 2)
        figures = {name: [] for name in names}
        for _ in range(options.rounds):
            for name, made in figures.items():
                made.append(speed(model, cache_of(name, config, length), prompt, options.tokens))
        for name, made in figures.items():
            over = ratios.median_ratio(made, figures["dynamic"]) if "dynamic" in figures else None
            print(f"{size:6} {name:20} {median(made):8.1f} tokens/s"
                  + ("" if over is None else f"   {over:.3f} of DynamicCache"), flush=True)


if __name__ == "__main__":
    main()
