"""The program regard-llm on small random models, held against Transformers in f32 on the same files."""

import functools
import itertools
import math

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import llm_reference  # noqa: E402
import tiny_gguf  # noqa: E402
from llm_program import BACKENDS, document, run  # noqa: E402

SHAPES = {
    "one head": tiny_gguf.Shape(heads=1, heads_kv=1, head_dim=32),
    "four on two": tiny_gguf.Shape(heads=4, heads_kv=2, layers=3),
    "six on one": tiny_gguf.Shape(heads=6, heads_kv=1, tied=False),
    "three": tiny_gguf.Shape(heads=3, heads_kv=3, head_dim=24, base=500.0),
    "nine on three": tiny_gguf.Shape(heads=9, heads_kv=3, head_dim=64, layers=1),
}
PROMPTS = {
    "short": "h",
    "words": "The other one, and then 12 more\n\n",
    "long": "Over the hill, in a land of water and on no map there is, 3 tellers tell: " * 2,
    "scripts": "naïve café — 人工智能 👩‍🚀",
    "special": "<|im_start|>user\nhello<|im_end|>\n",
}
TOKENS = 64
# Two logits that are closer may change places: f32 sums in another order. No prompt here has such a step.
LEAST_GAP = 1e-4
# Of a logit, relative to the largest: f32 through all layers.
TOLERANCE = 2e-5


def generate(checkpoint, prompt, *words):
    """The document of a greedy run in f32."""
    return document("generate", "--checkpoint", checkpoint, "--prompt", prompt, "--temperature", 0, "--dtype", "f32",
                    "--kv-cache", "f32", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def reference(folder):
    """Of a shape: the file, its tokenizer and model, and for each prompt tokens, new tokens and logits."""
    @functools.cache
    def made(name):
        path = tiny_gguf.write(folder / f"{name.replace(' ', '_')}.gguf", SHAPES[name], seed=len(name),
                               eos=0)
        tokenizer, model = llm_reference.Tokenizer(path), llm_reference.load(path)
        results = {}
        for prompt, text in PROMPTS.items():
            ids = tokenizer.encode(text, special=True)
            tokens, gaps, logits = llm_reference.greedy(model, ids, TOKENS)
            assert min(gaps) > LEAST_GAP, f"{prompt}: step {np.argmin(gaps)} has two equal logits"
            if 0 in tokens:  # the program ends there
                tokens = tokens[:tokens.index(0)]
            results[prompt] = ids, tokens, logits
        return path, tokenizer, model, results
    return made


@pytest.mark.parametrize("name", SHAPES)
def test_the_references_differ(name, reference):
    """A program that repeats one token, or forgets the prompt, is not equal to them."""
    results = reference(name)[3]
    assert len({tuple(tokens) for _, tokens, _ in results.values()}) == len(PROMPTS)
    assert sum(len(tokens) for _, tokens, _ in results.values()) > 3 * TOKENS
    assert any(len(set(tokens)) > 5 for _, tokens, _ in results.values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_greedy_tokens_and_logits(name, backend, reference, tmp_path):
    checkpoint, _, _, results = reference(name)
    logits_file = tmp_path / "logits"
    for at, (page_size, threads) in enumerate(itertools.product((0, 1, 16, 64), (1, 2))):
        prompt = list(PROMPTS)[at % len(PROMPTS)]
        ids, tokens, logits = results[prompt]
        made = generate(checkpoint, PROMPTS[prompt], "--max-new-tokens", TOKENS, "--attention-backend", backend,
                        "--page-size", page_size, "--threads", threads, "--write-logits", logits_file)
        where = f"{prompt}, page size {page_size}, {threads} threads"
        assert made["prompt_tokens"] == ids, where
        assert made["samples"][0]["tokens"] == tokens, where
        found = np.fromfile(logits_file, np.float32)
        assert abs(found - logits).max() <= TOLERANCE * abs(logits).max(), where
        ran_on = {phase["backend"] for phase in made["phases"].values()}
        if backend != "auto":
            assert ran_on == {backend.removesuffix("_attention")}, where


@pytest.mark.parametrize("prompt", PROMPTS)
def test_tokens_of_every_prompt(prompt, reference):
    checkpoint, tokenizer, _, results = reference("four on two")
    ids, tokens, _ = results[prompt]
    made = generate(checkpoint, PROMPTS[prompt], "--max-new-tokens", TOKENS)
    assert (made["prompt_tokens"], made["samples"][0]["tokens"]) == (ids, tokens)
    assert made["rates"]["new_tokens"] == len(tokens)
    assert tokenizer.decode(ids) == PROMPTS[prompt]


@pytest.mark.parametrize("drafts", [1, 4, 7])
def test_prompt_lookup_changes_no_token(drafts, reference):
    checkpoint, _, _, results = reference("four on two")
    drafted = 0
    for prompt, (_, tokens, _) in results.items():
        made = generate(checkpoint, PROMPTS[prompt], "--max-new-tokens", TOKENS, "--prompt-lookup", drafts)
        assert made["samples"][0]["tokens"] == tokens, prompt
        drafted += made["rates"]["drafted"]
    assert drafted > 0


def test_samples_share_a_prompt(reference):
    checkpoint, _, _, results = reference("four on two")
    made = generate(checkpoint, PROMPTS["words"], "--max-new-tokens", TOKENS, "--num-samples", 3)
    assert [sample["tokens"] for sample in made["samples"]] == [results["words"][1]] * 3


def test_an_answer_ends_at_the_end_of_text(folder, reference):
    """The same weights, in a file that names the fifth distinct token of the answer as its end."""
    _, _, _, results = reference("four on two")
    tokens = results["words"][1]
    end = list(dict.fromkeys(tokens))[4]
    checkpoint = tiny_gguf.write(folder / "ends.gguf", SHAPES["four on two"], seed=len("four on two"), eos=end)
    made = generate(checkpoint, PROMPTS["words"], "--max-new-tokens", TOKENS)
    assert made["samples"][0]["tokens"] == tokens[:tokens.index(end)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_perplexity(backend, reference, tmp_path):
    checkpoint, tokenizer, model, _ = reference("four on two")
    text = tmp_path / "text"
    text.write_text(llm_reference.TEXT.read_text()[:1500])
    tokens = tokenizer.encode(text.read_text(), special=False)
    for window in (7, 100, 256):
        found = document("eval", text, "--checkpoint", checkpoint, "--window", window, "--dtype", "f32", "--kv-cache",
                         "f32", "--attention-backend", backend)
        value, scored = llm_reference.perplexity(model, tokens, window)
        assert found["tokens"] == scored
        assert math.isclose(found["perplexity"], value, rel_tol=1e-5)


def test_a_context_that_is_full_ends_the_answer(reference):
    """A token is made at each of the positions that there are, and one after the last."""
    checkpoint, _, _, results = reference("four on two")
    ids, tokens, _ = results["words"]
    made = generate(checkpoint, PROMPTS["words"], "--max-new-tokens", TOKENS, "--max-seq-length", len(ids) + 5)
    assert made["context_full"] and made["samples"][0]["tokens"] == tokens[:6]


REFUSED = {
    "backend": (["--attention-backend", "flashy"], 2, "--attention-backend (flashy) must be math"),
    "cudnn": (["--attention-backend", "cudnn_attention"], 3, "cudnn"),
    "too long": (["--max-seq-length", "4"], 2, "raise --max-seq-length"),
    "context": (["--max-seq-length", "257"], 2, "--max-seq-length (257) must be at most"),
    "file": (["--checkpoint", "/nowhere.gguf"], 2, "--checkpoint (/nowhere.gguf)"),
    "cache": (["--kv-cache", "f64"], 2, "--kv-cache"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_option(name, reference):
    words, code, message = REFUSED[name]
    checkpoint = reference("four on two")[0]
    given = [] if "--checkpoint" in words else ["--checkpoint", checkpoint]
    ran = run("generate", *given, "--prompt", PROMPTS["words"], *words)
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    assert message in ran.stderr
