"""What Transformers computes of a GGUF file in f32: the reference that regard-llm is held against.

    llm_reference.py MODEL.gguf OUTPUT [--text FILE]

writes into the folder OUTPUT reference.json and, for each prompt N of it, prompt_N.npy: the f32
logits [vocabulary] of the prompt's last position. Nothing of regard is used.

* Weights are dequantised to f32 by Transformers' GGUF loader; attention is "eager"; the cache is f32.
* Tokens come from the package tokenizers with the file's vocabulary and merges: each digit alone,
  then GPT-2's pattern. Special tokens of the file are recognised only in prompts with "special".
* tokens: 64 greedy tokens, past an end of text too; eos_at is the index of the first token that is
  eos_token_id, or null. gaps: for each token, the largest logit less the second largest.
* Perplexity of a text: its tokens, without a start token, are cut into chunks of up to 2,048 that do
  not overlap. The first token of each chunk is not scored; every other is scored with what precedes
  it in its chunk. The log softmax of f32 logits is computed in f32, the sum in f64; perplexity is
  exp(-sum / count).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the file is here

import gguf
import numpy as np
import tokenizers
import torch
import transformers

ROOT = Path(__file__).resolve().parents[3]
TEXT = ROOT / "tests/llm/data/alice.txt"
MAX_NEW_TOKENS = 64
CHUNK = 2048
CONTROL, USER_DEFINED = 3, 4  # token types of GGUF that are recognised as a whole

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(*messages: tuple[str, str]) -> str:
    """Messages in ChatML, followed by the start of an answer."""
    turns = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return turns + "<|im_start|>assistant\n"


def prompts() -> list[dict[str, Any]]:
    passage = TEXT.read_text()[:2400]
    plain = {
        "plain": "Once upon a time, in a village by the sea,",
        "passage": passage,
        "code": "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n    if n < 2:\n",
        "digits": "Pi is 3.14159265358979, 2^16 = 65536 and 0x1F4 = 500. The sum of 1234 and 5678 is",
        "chinese": "人工智能是计算机科学的一个分支,它",
        "blanks": "  It's   naïve — a café,\tÜber\r\n\r\n\n  \"Don't we'll\"  👩‍🚀 ",
    }
    special = {
        "chat": chat(("system", SYSTEM), ("user", "What is gravity?")),
        "turns": chat(("system", "You answer in one sentence."), ("user", "Who wrote Hamlet?"),
                      ("assistant", "William Shakespeare wrote Hamlet."),
                      ("user", "And when? Name 3 more of his plays, with years.")),
    }
    return ([{"name": name, "text": text, "special": False} for name, text in plain.items()] +
            [{"name": name, "text": text, "special": True} for name, text in special.items()])


class Tokenizer:
    """Tokens of a file's vocabulary, merges and special tokens."""

    def __init__(self, path: Path) -> None:
        from tokenizers import decoders, models, pre_tokenizers

        reader = gguf.GGUFReader(path)

        def value(key: str) -> Any:
            field = reader.get_field(key)
            return None if field is None else field.contents()

        self.kind = (value("tokenizer.ggml.model"), value("tokenizer.ggml.pre"))
        if self.kind != ("gpt2", "smollm"):
            raise ValueError(f"{path}: tokenizer.ggml.model and pre are {self.kind}; expected "
                             "('gpt2', 'smollm')")
        if value("tokenizer.ggml.add_bos_token"):
            raise ValueError(f"{path}: tokenizer.ggml.add_bos_token is true; expected false")
        spellings = value("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ", 1)) for merge in value("tokenizer.ggml.merges")]
        vocabulary = {spelling: token for token, spelling in enumerate(spellings)}
        types = value("tokenizer.ggml.token_type")
        specials = [spelling for spelling, kind in zip(spellings, types, strict=True)
                    if kind in (CONTROL, USER_DEFINED)]
        self.eos = value("tokenizer.ggml.eos_token_id")

        def make() -> Any:
            made = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
            made.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False)])
            made.decoder = decoders.ByteLevel()
            return made

        self._plain, self._special = make(), make()
        self._special.add_special_tokens(specials)

    def encode(self, text: str, special: bool) -> list[int]:
        return (self._special if special else self._plain).encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        return self._special.decode(tokens, skip_special_tokens=False)


def load(path: Path) -> Any:
    """The file's model in f32, for inference."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager",
        local_files_only=True)
    return model.eval()


@torch.no_grad()
def greedy(model: Any, prompt: list[int],
           max_new_tokens: int = MAX_NEW_TOKENS) -> tuple[list[int], list[float], Any]:
    """Tokens, gaps of the two largest logits, and the logits of the prompt's last position."""
    cache = transformers.DynamicCache()
    tokens: list[int] = []
    gaps: list[float] = []
    first, ids = None, prompt
    for _ in range(max_new_tokens):
        logits = model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0, -1]
        first = logits if first is None else first
        top = logits.topk(2)
        gaps.append(float(top.values[0] - top.values[1]))
        ids = [int(top.indices[0])]
        tokens += ids
    assert first is not None
    return tokens, gaps, first.numpy()


@torch.no_grad()
def perplexity(model: Any, tokens: list[int], chunk: int = CHUNK) -> tuple[float, int]:
    """Perplexity, and how many tokens were scored."""
    total, count = 0.0, 0
    for start in range(0, len(tokens), chunk):
        ids = torch.tensor([tokens[start:start + chunk]])
        log_probs = model(ids, use_cache=False).logits[0, :-1].log_softmax(-1)
        total += float(log_probs.gather(-1, ids[0, 1:, None]).double().sum())
        count += ids.shape[1] - 1
    return math.exp(-total / count), count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="a folder")
    parser.add_argument("--text", type=Path, default=TEXT, help=f"for perplexity ({TEXT.name})")
    arguments = parser.parse_args()
    tokenizer, model = Tokenizer(arguments.model), load(arguments.model)
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = []
    for at, prompt in enumerate(prompts()):
        began = time.perf_counter()
        ids = tokenizer.encode(prompt["text"], prompt["special"])
        tokens, gaps, logits = greedy(model, ids)
        np.save(arguments.output / f"prompt_{at}.npy", logits)
        eos_at = tokens.index(tokenizer.eos) if tokenizer.eos in tokens else None
        results.append(dict(prompt, prompt_tokens=ids, tokens=tokens, gaps=gaps, eos_at=eos_at,
                            largest_logit=float(abs(logits).max()), logits=f"prompt_{at}.npy",
                            continuation=tokenizer.decode(tokens)))
        print(f"{prompt['name']}: {len(ids)} tokens, least gap {min(gaps):.2g}, "
              f"{time.perf_counter() - began:.1f} s: {tokenizer.decode(tokens)!r}", flush=True)
    text_tokens = tokenizer.encode(arguments.text.read_text(), special=False)
    value, count = perplexity(model, text_tokens)
    print(f"perplexity of {arguments.text.name}: {value:.6f} over {count} tokens")
    document = {
        "model": arguments.model.name, "eos_token_id": tokenizer.eos, "prompts": results,
        "perplexity": {"text": arguments.text.name, "tokens": len(text_tokens), "chunk": CHUNK,
                       "scored": count, "value": value, "mean_nll": math.log(value)},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "tokenizers": tokenizers.__version__},
    }
    unfinished = arguments.output / "reference.json.part"
    unfinished.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    unfinished.replace(arguments.output / "reference.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
