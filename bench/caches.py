#!/usr/bin/env python3
"""Tokens a second of Transformers' generate with each kind of cache, token by token in alternation.

    build/venv-torch/bin/python bench/caches.py                    # after ./dev torch
    build/venv-torch/bin/python bench/caches.py --model large --only dynamic,int8

All on regard's attention, in f32, with the same random weights and prompt, on one thread. Each kind has
a generate of its own; one of them runs at a time, for a token. A token's time is what the processor
spent on it, so that others may use the machine. Printed are the median over the tokens after the first
of each round, and that of the ratios to DynamicCache for the same token.
"""

import argparse
import os
import sys
import threading
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
    add("--rounds", type=int, default=5, help="texts (5)")
    return parser.parse_args()


def cache_of(name, config, length):
    import transformers

    import regard.transformers

    if name == "dynamic":
        return transformers.DynamicCache(config=config)
    if name == "static":
        return transformers.StaticCache(config=config, max_cache_len=length)
    return regard.transformers.Cache(config, max_cache_len=length, **CACHES[name])


class Turns:
    """Lets one thread after the other run, each until it calls `done`."""

    def __init__(self, count):
        self._waiting = [threading.Semaphore(0) for _ in range(count)]
        self._waiting[0].release()

    def wait(self, who):
        self._waiting[who].acquire()

    def done(self, who):
        self._waiting[(who + 1) % len(self._waiting)].release()


def generate(model, cache, prompt, tokens, turn):
    """Seconds of each token after the first; turn: (turns, which)."""
    import torch

    turns, who = turn
    seconds, begin = [], 0.0

    def finished(ids, scores, **_):
        nonlocal begin
        seconds.append(time.thread_time() - begin)
        turns.done(who)
        turns.wait(who)
        begin = time.thread_time()
        return torch.zeros(len(ids), dtype=torch.bool)

    turns.wait(who)
    try:
        model.generate(prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache,
                       max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None,
                       stopping_criteria=[finished], disable_compile=True)
    finally:
        turns.done(who)
    return seconds[1:]


def texts(model, caches, prompt, tokens):
    """Seconds of the tokens with each cache."""
    turns, made = Turns(len(caches)), {}

    def run(who, name):
        made[name] = generate(model, caches[name], prompt, tokens, (turns, who))

    threads = [threading.Thread(target=run, args=each) for each in enumerate(caches)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def main():
    options = arguments()
    os.environ["REGARD_NUM_THREADS"] = "1"  # read when regard is imported
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "build/dev/python"))
    import torch
    import transformers

    import regard.transformers

    regard.transformers.register()
    torch.set_num_threads(1)
    names = options.only.split(",") if options.only else list(CACHES)
    for size in options.model or MODELS:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(**MODELS[size], max_position_embeddings=4096)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="regard").eval()
        prompt = torch.randint(5, 500, (1, options.prompt))
        length = options.prompt + options.tokens
        seconds = {name: [] for name in names}
        for _ in range(options.rounds):
            caches = {name: cache_of(name, config, length) for name in names}
            for name, made in texts(model, caches, prompt, options.tokens).items():
                seconds[name] += made
        for name, made in seconds.items():
            over = ratios.median_ratio(seconds.get("dynamic", made), made)
            print(f"{size:6} {name:20} {1 / median(made):8.1f} tokens/s   {over:.3f} of DynamicCache",
                  flush=True)


if __name__ == "__main__":
    main()
