#!/usr/bin/env python3
"""Whole models of Transformers on eager attention, PyTorch's sdpa and regard, in alternation.

    ./dev bench-models                                # makes the environment, then runs this
    models.py --only llama --dtype bf16 --rounds 15
    models.py --json models.json

One process, the same weights and inputs, two threads for everybody: what is not attention costs all
of them the same. A turn is one run to warm up and the best of at least three; a figure is the median
over the rounds of a ratio within the round. The results of sdpa and regard are held against eager's
before anything is timed. Weights are random: speed does not depend on them.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median

from harness import ratios
from harness.timing import timed_turn

IMPLEMENTATIONS = ("eager", "sdpa", "regard")
PROMPT = 2048
TOKENS = 4  # a run of decoding: a token each, the cache then cut back to the prompt
# Greatest difference from eager, over the greatest value: rounding, through all layers of a model
# with random weights.
TOLERANCES = {"f32": 1e-4, "bf16": 6e-2}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", default="", help="cases whose name contains this")
    add("--dtype", choices=tuple(TOLERANCES), help="one of the two (both)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of everybody")
    add("--rounds", type=int, default=7, help="alternations a case (7)")
    add("--turn", type=float, default=0.25, help="least seconds of a turn (0.25)")
    add("--pause", type=float, default=0.02, help="seconds before each turn (0.02)")
    add("--json", type=Path, help="write every figure there")
    return parser.parse_args()


def minilm(dtype):
    """The encoder of all-MiniLM-L6-v2."""
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=30522, hidden_size=384, intermediate_size=1536,
                        num_hidden_layers=6, num_attention_heads=12)
    return BertModel(config, add_pooling_layer=False).eval().to(dtype)


def llama(dtype):
    """A decoder of 62 million parameters: 12 heads on 4, eight layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=8192, hidden_size=768, intermediate_size=2048,
                         num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4,
                         max_position_embeddings=2 * PROMPT)
    return LlamaForCausalLM(config).eval().to(dtype)


def forward_case(make, lengths):
    """A call of the whole model on sequences of these lengths, padded on the right."""
    def case(dtype):
        import torch

        model = make(dtype)
        ids = torch.randint(5, 8000, (len(lengths), max(lengths)))
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
        whole = min(lengths) == max(lengths)

        def call(_):
            return model(ids, attention_mask=None if whole else mask)[0] * mask[..., None]
        return model, call
    return case


def decode_case(make, batch):
    """TOKENS tokens after a prompt, by a cache that grows."""
    def case(dtype):
        import torch
        from transformers import DynamicCache

        model = make(dtype)
        ids = torch.randint(5, 8000, (batch, PROMPT))
        model.set_attn_implementation("sdpa")
        cache = DynamicCache(config=model.config)
        model(ids, past_key_values=cache, logits_to_keep=1)

        def call(_):
            for i in range(TOKENS):
                logits = model(ids[:, i:i + 1], past_key_values=cache)[0]
            cache.crop(-TOKENS)
            return logits
        return model, call
    return case


# name -> (how it is made, calls of the model in a run)
CASES = {
    "minilm 32 x 128": (forward_case(minilm, [128] * 32), 1),
    "minilm 4 x 512, padded": (forward_case(minilm, [512, 384, 256, 128]), 1),
    f"llama prompt of {PROMPT}": (forward_case(llama, [PROMPT]), 1),
    f"llama token after {PROMPT}": (decode_case(llama, 1), TOKENS),
    f"llama token after {PROMPT}, 4 sequences": (decode_case(llama, 4), TOKENS),
}


def checked(name, dtype_name, model, call):
    """Fails where an implementation's result is not eager's."""
    results = {}
    for implementation in IMPLEMENTATIONS:
        model.set_attn_implementation(implementation)
        results[implementation] = call(0).float()
    for implementation, result in results.items():
        difference = (result - results["eager"]).abs().max() / results["eager"].abs().max()
        if not difference <= TOLERANCES[dtype_name]:
            sys.exit(f"models.py: {name} {dtype_name}: {implementation} is {difference:.2g} away "
                     f"from eager; expected at most {TOLERANCES[dtype_name]}")


def measure(name, dtype_name, options):
    """Seconds of one call of the model, a list for each implementation."""
    import torch

    torch.manual_seed(0)
    make, calls = CASES[name]
    with torch.inference_mode():
        model, call = make({"f32": torch.float32, "bf16": torch.bfloat16}[dtype_name])
        checked(name, dtype_name, model, call)
        seconds = {implementation: [] for implementation in IMPLEMENTATIONS}
        for _ in range(options.rounds):
            for implementation, times in seconds.items():
                model.set_attn_implementation(implementation)
                times.append(timed_turn(call, 1, options.pause, options.turn) / calls)
    return seconds


def line(name, dtype_name, seconds):
    times = "  ".join(f"{key} {1e3 * median(values):8.1f} ms" for key, values in seconds.items())
    over = ratios.ratios(seconds["sdpa"], seconds["regard"])
    low, high = ratios.quartiles(over)
    return (f"{name:36} {dtype_name:5} {times}   sdpa over regard {median(over):.2f} "
            f"({low:.2f} to {high:.2f})")


def main():
    options = arguments()
    os.environ["REGARD_NUM_THREADS"] = str(options.threads)  # read when regard is imported
    import torch

    import regard.transformers

    regard.transformers.register()
    torch.set_num_threads(options.threads)
    rows = []
    for name in CASES:
        for dtype_name in TOLERANCES:
            if options.only not in name or options.dtype not in (None, dtype_name):
                continue
            seconds = measure(name, dtype_name, options)
            rows.append({"case": name, "dtype": dtype_name, "seconds": seconds})
            print(line(name, dtype_name, seconds), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
