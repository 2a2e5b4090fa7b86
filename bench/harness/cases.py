"""Cases in regard's own syntax (`regard explain --help` lists every word), as far as they can be
measured against other libraries, and what each one costs."""

import dataclasses
import re

DTYPES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}  # bytes an element
EXTENTS = {"b": "batch", "hq": "num_heads_q", "hkv": "num_heads_kv", "sq": "seqlen_q",
           "skv": "seqlen_kv", "d": "head_dim_qk", "dv": "head_dim_v"}
LAYOUTS = ("bhsd", "bshd")
DIAGONALS = ("tl", "br")
MAX_DECODE_QUERIES = 32  # of a call that counts as decode: one query, or a few speculative ones
MAX_SHORT, MIN_TRAFFIC = 200, 8 << 20  # tokens of short sequences, and bytes of a call of them


class CaseError(ValueError):
    """A word of a case that cannot be measured here, named."""


@dataclasses.dataclass(frozen=True)
class Case:
    text: str
    batch: int
    num_heads_q: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_kv: int
    head_dim_qk: int
    head_dim_v: int
    dtype: str
    causal: bool
    diagonal: str | None  # None: not named, only where seqlen_q == seqlen_kv
    layout: str | None  # of the memory; None: whatever the run says
    backward: bool  # the word "grad": what is timed is the backward

    @property
    def diagonal_offset(self):
        """Query i sees the keys up to i + this, where the case is causal."""
        return self.seqlen_kv - self.seqlen_q if self.diagonal == "br" else 0

    @property
    def decode(self):
        """Few queries against a longer cache, whose K and V therefore come from memory."""
        return self.seqlen_q <= MAX_DECODE_QUERIES and self.seqlen_q < self.seqlen_kv

    @property
    def short(self):
        """Many short sequences, of which memory traffic may take as long as the arithmetic."""
        is_short = max(self.seqlen_q, self.seqlen_kv) <= MAX_SHORT and self.moved_bytes >= MIN_TRAFFIC
        return is_short and not self.decode and not self.backward

    def with_seqlen_q(self, seqlen_q):
        """The case with another word sqN."""
        words = [f"sq{seqlen_q}" if re.fullmatch(r"sq\d+", word) else word
                 for word in self.text.split()]
        return parse_case(" ".join(words))

    @property
    def kv_bytes(self):
        width = self.head_dim_qk + self.head_dim_v
        return self.batch * self.num_heads_kv * self.seqlen_kv * width * DTYPES[self.dtype]

    @property
    def moved_bytes(self):
        """Q, K, V and the output, whose lines are read before they are written."""
        queries = self.batch * self.num_heads_q * self.seqlen_q * (self.head_dim_qk + 2 * self.head_dim_v)
        return self.kv_bytes + queries * DTYPES[self.dtype]

    @property
    def traffic(self):
        """Bytes between memory and caches of a call whose time they may decide; 0 for all others."""
        return self.kv_bytes if self.decode else self.moved_bytes if self.short else 0

    @property
    def score_bytes(self):
        """The score matrix that an unfused attention would keep, in the problem's own type."""
        scores = self.batch * self.num_heads_q * self.seqlen_q * self.seqlen_kv
        return scores * DTYPES[self.dtype]

    @property
    def visible_pairs(self):
        """Pairs of query and key of one head. The area under the diagonal: half of a square."""
        if not self.causal:
            return self.seqlen_q * self.seqlen_kv
        first = self.diagonal_offset
        return area_below(first + self.seqlen_q, self.seqlen_kv) - area_below(first, self.seqlen_kv)

    @property
    def flops(self):
        """2 * (Dqk + Dv) for each pair; of a backward 2 * (3 * Dqk + 2 * Dv)."""
        dims = self.head_dim_qk + self.head_dim_v
        if self.backward:
            dims += 2 * self.head_dim_qk + self.head_dim_v
        return 2 * dims * self.batch * self.num_heads_q * self.visible_pairs


def area_below(x, height):
    """The integral of min(max(t, 0), height) for t from minus infinity to x."""
    if x <= 0:
        return 0.0
    return x * x / 2 if x <= height else height * height / 2 + (x - height) * height


def parse_case(text):
    """The Case of `text`; CaseError names the word that is wrong, unknown or missing."""
    found = {"dtype": "f32", "causal": False, "diagonal": None, "layout": None, "backward": False}
    for word in text.split():
        name, value = parse_word(word)
        found[name] = value
    for name in ("sq", "d"):
        if EXTENTS[name] not in found:
            raise CaseError(f"{text!r}: the word {name}N is missing")
    found.setdefault("batch", 1)
    found.setdefault("num_heads_q", 1)
    found.setdefault("num_heads_kv", found["num_heads_q"])
    found.setdefault("seqlen_kv", found["seqlen_q"])
    found.setdefault("head_dim_v", found["head_dim_qk"])
    case = Case(text=" ".join(text.split()), **found)
    if case.num_heads_q % case.num_heads_kv:
        raise CaseError(f"{text!r}: hkv{case.num_heads_kv} must divide hq{case.num_heads_q}")
    if case.causal and case.diagonal is None and case.seqlen_q != case.seqlen_kv:
        raise CaseError(f"{text!r}: causal with sq != skv needs diag=tl or diag=br")
    return case


def parse_word(word):
    """(field, value) of one word."""
    if match := re.fullmatch(r"(b|hq|hkv|sq|skv|d|dv)(\d+)", word):
        if int(match[2]) < 1:
            raise CaseError(f"{word!r}: expected an extent of at least 1")
        return EXTENTS[match[1]], int(match[2])
    if word in DTYPES:
        return "dtype", word
    if word == "causal":
        return "causal", True
    if word == "grad":
        return "backward", True
    name, _, value = word.partition("=")
    for key, field, values in (("diag", "diagonal", DIAGONALS), ("layout", "layout", LAYOUTS)):
        if name == key:
            if value not in values:
                raise CaseError(f"{word!r}: expected {key}= one of {', '.join(values)}")
            return field, value
    raise CaseError(f"{word!r}: not a word of a case that can be measured here")
