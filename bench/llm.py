"""regard-llm, Transformers and llama.cpp on one GGUF file, in alternating rounds of one run.

usage: llm.py PROGRAM FILE.gguf [--rounds N] [--json FILE]

Prints the next-token rate behind a prompt of 128 tokens, and the time a token at two long contexts, whose
slope is the time of attention. Transformers computes in bf16 on sdpa with its static cache left out, as
`generate` does by default; llama.cpp (llama-cpp-python, if it is installed) with the file's own weights
and a cache of f16, with and without its fused attention. regard-llm runs with the cache of its weights' type and with one of f16, as llama.cpp has.
"""

import argparse
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import time

PROMPT, NEW = 128, 64
CONTEXTS = (4096, 8000)
THREADS = 2


def best(rates):
    return max(rates) if rates else None


def regard_llm(program, file, cache):
    """{"next": tokens a second, 4096: seconds a token, ...} from the program's own benchmark."""
    done = subprocess.run([program, "bench", "--checkpoint", file, "--threads", str(THREADS), "--kv-cache", cache,
                           "--json"], capture_output=True, text=True, check=True)
    rows = {row["context"]: row for row in json.loads(done.stdout)["rows"] if row["phase"] == "decode"}
    return {"next": rows[PROMPT]["tokens_per_s"],
            **{context: 1.0 / rows[context]["tokens_per_s"] for context in CONTEXTS}}


class Transformers:
    def __init__(self, file):
        import torch
        from transformers import AutoModelForCausalLM, GgufConfig
        torch.set_num_threads(THREADS)
        path = pathlib.Path(file)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16, attn_implementation="sdpa",
            quantization_config=GgufConfig(dequantize=True)).eval()

    def __call__(self):
        torch = self.torch
        prompt = torch.arange(3, 3 + PROMPT)[None]
        with torch.inference_mode():
            cache = self.model(prompt, use_cache=True).past_key_values
            token, start = torch.tensor([[5]]), time.perf_counter()
            for _ in range(NEW):
                logits = self.model(token, past_key_values=cache, use_cache=True).logits
                token = logits[:, -1:].argmax(-1)
            return {"next": NEW / (time.perf_counter() - start)}


class LlamaCpp:
    def __init__(self, file, flash_attn=False):
        import llama_cpp
        self.model = llama_cpp.Llama(file, n_ctx=8192, n_threads=THREADS, n_threads_batch=THREADS,
                                     n_batch=512, flash_attn=flash_attn, verbose=False)

    def _decode_seconds(self, steps):
        start = time.perf_counter()
        for step in range(steps):
            self.model.eval([5 + step])
        return (time.perf_counter() - start) / steps

    def __call__(self):
        found = {}
        self.model.reset()
        self.model.eval(list(range(3, 3 + PROMPT)))
        found["next"] = 1.0 / self._decode_seconds(NEW)
        self.model.reset()
        filled = 0
        for context in CONTEXTS:
            self.model.eval([3 + i % 1000 for i in range(context - filled)])
            found[context] = self._decode_seconds(16)
            filled = context + 16
        return found


def slope_ms(found):
    """Milliseconds of attention for 1,000 positions of context."""
    first, last = CONTEXTS
    if first not in found:
        return None
    return 1e6 * (found[last] - found[first]) / (last - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    peers = {"regard-llm": lambda: regard_llm(args.program, args.file, "auto"),
             "regard-llm, cache of f16": lambda: regard_llm(args.program, args.file, "f16")}
    for name, peer in (("Transformers, sdpa, bf16", Transformers), ("llama.cpp", LlamaCpp),
                       ("llama.cpp, flash_attn", functools.partial(LlamaCpp, flash_attn=True))):
        try:
            peers[name] = peer(args.file)
        except ImportError as error:
            print(f"without {name}: {error}", file=sys.stderr)
    rounds = {name: [] for name in peers}
    for _ in range(args.rounds):
        for name, measure in peers.items():
            rounds[name].append(measure())
            print(name, rounds[name][-1], file=sys.stderr)
            time.sleep(0.5)  # until the threads of the last one have stopped spinning
    print(f"{'':<26} {'tokens/s':>9} {'attention, ms for 1,000 positions':>34}")
    report = {}
    for name, found in rounds.items():
        rate = max(each["next"] for each in found)
        slopes = [slope for slope in map(slope_ms, found) if slope is not None]
        report[name] = {"next_tokens_per_s": rate, "attention_ms": statistics.median(slopes) if slopes else None}
        print(f"{name:<26} {rate:>9.1f} {f'{statistics.median(slopes):.3f}' if slopes else '':>34}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
