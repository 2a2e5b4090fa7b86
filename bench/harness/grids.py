"""The built-in grids: which cases, and who takes part.

A grid is cases, entrants and the unit that its cells are read in. An entrant is a name, or
regard[:BACKEND]@key=value+...: regard under other settings. Adding a grid is adding a list here.
"""

import dataclasses

from .cases import parse_case

PEERS = ("torch", "onnxruntime", "openvino", "regard")

# The plot in the README: what people run, and what it is called there.
TITLES = {
    "b1 hq12 sq512 d64 f32": "Encoder, 512 tokens, f32",
    "b1 hq12 sq512 d64 bf16": "Encoder, 512 tokens, bf16",
    "b1 hq12 sq512 d64 f16": "Encoder, 512 tokens, f16",
    "b8 hq12 sq128 d32 f32": "8 sentences of 128 tokens, f32",
    "b1 hq8 sq2048 d64 f32 causal": "Prompt of 2,048 tokens, f32",
    "b1 hq8 sq2048 d128 bf16 causal": "Prompt of 2,048 tokens, bf16",
    "b1 hq32 hkv8 sq1 skv4096 d128 f32 layout=bhsd": "One token, 4,096 keys, f32",
    "b1 hq32 hkv8 sq1 skv4096 d128 bf16 layout=bhsd": "One token, 4,096 keys, bf16",
}

FORWARD = """
b1 hq12 sq512 d64 f32
b1 hq8 sq2048 d64 f32
b1 hq8 sq2048 d64 f32 causal
b1 hq8 sq2048 d128 f32
b1 hq8 sq2048 d128 f32 causal
b1 hq4 sq2048 d256 f32
b8 hq12 sq128 d32 f32
b1 hq12 sq512 d64 bf16
b1 hq8 sq2048 d64 bf16
b1 hq8 sq2048 d64 bf16 causal
b1 hq8 sq2048 d128 bf16
b1 hq8 sq2048 d128 bf16 causal
b1 hq4 sq2048 d256 bf16
b8 hq12 sq128 d32 bf16
b1 hq12 sq512 d64 f16
b1 hq8 sq2048 d64 f16
b1 hq8 sq2048 d64 f16 causal
b1 hq8 sq2048 d128 f16
b1 hq8 sq2048 d128 f16 causal
b1 hq4 sq2048 d256 f16
b8 hq12 sq128 d32 f16
"""

# head_dim 64, 80, 96, 112 and 128 lie next to each other so that a cliff shows.
SHAPES = """
b1 hq8 sq1024 d40 f32
b1 hq8 sq1024 d64 f32
b1 hq8 sq1024 d72 f32
b1 hq8 sq1024 d80 f32
b1 hq8 sq1024 d96 f32
b1 hq8 sq1024 d112 f32
b1 hq8 sq1024 d128 f32
b1 hq4 sq1024 d192 f32
b1 hq4 sq1024 d192 dv128 f32
b1 hq8 sq1024 d80 bf16
b1 hq8 sq1024 d112 bf16
b1 hq4 sq1024 d192 bf16
b1 hq8 sq1021 d64 f32
b1 hq8 sq1021 d64 f32 causal
b1 hq8 sq1021 d128 bf16 causal
b1 hq8 sq197 d64 f32
b1 hq12 sq77 d64 f32
b1 hq32 hkv8 sq1024 d128 f32 causal
b1 hq32 hkv8 sq1024 d128 bf16 causal
b1 hq32 hkv8 sq256 skv2048 d128 bf16 causal diag=br
b1 hq8 sq4096 skv77 d40 f32
b1 hq8 sq256 skv4096 d64 f32
b1 hq2 sq8192 d64 f32
b1 hq2 sq8192 d128 bf16 causal
b64 hq12 sq64 d64 f32
b64 hq12 sq32 d64 f32
b128 hq8 sq16 d64 bf16
"""

THREADS = """
b1 hq8 sq2048 d64 f32
b1 hq8 sq2048 d64 f32 causal
b1 hq8 sq2048 d128 f32
b1 hq8 sq2048 d128 f32 causal
b1 hq8 sq2048 d128 bf16
b1 hq8 sq2048 d128 bf16 causal
b1 hq1 sq2048 d64 f32
b8 hq12 sq128 d32 f32
"""

# The scalar units are some fifteen times slower, hence the short ones.
ISA = """
b1 hq12 sq512 d64 f32
b1 hq4 sq1024 d64 f32
b1 hq4 sq1024 d128 f32
b1 hq4 sq1024 d128 f32 causal
b1 hq2 sq1024 d256 f32
b1 hq4 sq1024 d128 bf16
b1 hq4 sq1024 d128 f16
b8 hq12 sq128 d32 f32
"""

DTYPES = ("f32", "bf16", "f16")


def decode_cases(layout):
    """A model of the Llama family at one token, short and long caches, alone and four at once."""
    return "\n".join(f"b{batch} hq32 hkv8 sq1 skv{seqlen_kv} d128 {dtype} layout={layout}"
                     for batch in (1, 4) for seqlen_kv in (4096, 32768) for dtype in DTYPES)


DECODE_BHSD, DECODE_BSHD = decode_cases("bhsd"), decode_cases("bshd")
DECODE_SHAPES = "\n".join(
    f"{shape} {dtype} layout=bhsd" for shape in (
        "b8 hq32 hkv8 sq1 skv1000 d128", "b1 hq32 hkv32 sq1 skv4096 d128",
        "b1 hq32 hkv1 sq1 skv4096 d128", "b1 hq32 hkv8 sq1 skv4096 d64") for dtype in DTYPES)

# What checking a few guessed tokens costs over producing one: both run in every round.
SPECULATIVE = "\n".join(
    f"b1 hq32 hkv8 sq{seqlen_q} skv4096 d128 {dtype} causal diag=br layout=bhsd"
    for seqlen_q in (4, 16) for dtype in DTYPES)

SMALL = """
b1 hq12 sq16 d64 f32
b1 hq12 sq64 d64 f32
"""

OVERHEAD = "b1 hq1 sq1 d64 f32"

BACKWARD = """
b1 hq8 sq2048 d64 f32 grad
b1 hq8 sq2048 d64 f32 causal grad
b1 hq8 sq2048 d128 f32 grad
b1 hq8 sq2048 d128 f32 causal grad
b1 hq4 sq2048 d256 f32 grad
b1 hq8 sq2048 d64 bf16 grad
b1 hq8 sq2048 d64 bf16 causal grad
b1 hq8 sq2048 d128 bf16 grad
b1 hq8 sq2048 d128 bf16 causal grad
b1 hq4 sq2048 d256 bf16 causal grad
b1 hq4 sq4096 d64 bf16 causal grad
b1 hq12 sq512 d64 f32 grad
b8 hq12 sq128 d32 f32 grad
b1 hq32 hkv8 sq1024 d128 f32 causal grad
"""

# One and two heads must still use every thread.
BACKWARD_THREADS = """
b1 hq1 sq8192 d64 f32 grad
b1 hq2 sq8192 d64 f32 grad
b1 hq1 sq8192 d64 f32 causal grad
b1 hq2 sq8192 d64 f32 causal grad
"""


@dataclasses.dataclass(frozen=True)
class Grid:
    cases: str  # one a line
    entrants: tuple = PEERS
    unit: str | None = None  # of the cells; None: GFLOP/s, or GB/s of K and V for decode


EXACT = "regard@max_error=4e-3"  # as exact in bf16 as f32 arithmetic is

GRIDS = {
    "headline": Grid("\n".join(TITLES)),
    "forward": Grid(FORWARD),
    "shapes": Grid(SHAPES),
    "threads": Grid(THREADS, ("regard@threads=1", "regard@threads=2")),
    "isa": Grid(ISA, ("regard@isa=scalar", "regard@isa=avx2", "regard@isa=avx512",
                      "regard@isa=avx512_bf16", "regard@isa=amx_bf16")),
    "decode": Grid("\n".join((DECODE_BHSD, DECODE_BSHD, DECODE_SHAPES)),
                   ("torch", "onnxruntime", "ggml", "regard")),
    "speculative": Grid(SPECULATIVE, ("torch", "regard@sq=1", "regard")),
    "backward": Grid(BACKWARD, ("torch", "torch_math", "regard", EXACT)),
    "backward_threads": Grid(BACKWARD_THREADS, ("regard@threads=1", "regard@threads=2")),
    "small": Grid(SMALL, PEERS, "us"),
    "overhead": Grid(OVERHEAD, ("torch", "benchmark:BM_CachedCall", "benchmark:BM_CachedCallC",
                                "regard"), "us"),
}


@dataclasses.dataclass(frozen=True)
class Entrant:
    """One column of the table."""

    name: str  # as written; the key of its figures
    library: str  # one of LIBRARIES
    backend: str | None = None  # regard's: flash, efficient, math; or the benchmark's name
    threads: int | None = None  # None: the run's
    isa: str | None = None  # None: the machine's
    seqlen_q: int | None = None  # None: the case's
    max_error: float | None = None  # of its policy

    @property
    def own_process(self):
        """regard reads its environment once, so other settings need another process."""
        return self.threads is not None or self.isa is not None

    def case_of(self, case):
        """What this entrant computes where the others compute `case`."""
        return case if self.seqlen_q is None else case.with_seqlen_q(self.seqlen_q)


LIBRARIES = ("torch", "torch_math", "onnxruntime", "openvino", "ggml", "benchmark", "regard")
SETTINGS = {"threads": ("threads", int), "isa": ("isa", str), "sq": ("seqlen_q", int),
            "max_error": ("max_error", float)}
SETTING_FIELDS = tuple(field for field, _ in SETTINGS.values())  # of an Entrant, and of its entry


def parse_entrant(text):
    """"regard", "regard:flash", "regard:math@threads=1+isa=avx2", "regard@sq=1", "torch",
    "benchmark:BM_CachedCall": a Google Benchmark of regard_bench."""
    head, _, settings = text.partition("@")
    library, _, backend = head.partition(":")
    found = dict(item.split("=", 1) for item in settings.split("+") if "=" in item)
    if library not in LIBRARIES:
        raise ValueError(f"{text!r}: nobody is called {library!r}")
    if (not set(found) <= set(SETTINGS) or (settings and not found)
            or (backend and library not in ("regard", "benchmark"))):
        raise ValueError(f"{text!r}: expected NAME or regard[:BACKEND]"
                         "[@threads=N+isa=NAME+sq=N+max_error=X]")
    if settings and library != "regard":
        raise ValueError(f"{text!r}: only regard has settings")
    if library == "benchmark" and not backend:
        raise ValueError(f"{text!r}: expected benchmark:NAME of a Google Benchmark")
    fields = {SETTINGS[key][0]: SETTINGS[key][1](value) for key, value in found.items()}
    return Entrant(text, library, backend or None, **fields)


def texts(lines):
    """The cases of a list above, spelt as a Case spells itself."""
    return [" ".join(line.split()) for line in lines.splitlines() if line.strip()]


def grid_cases(name):
    return [parse_case(text) for text in texts(GRIDS[name].cases)]


def grid_entrants(name, backends=()):
    """The grid's entrants; regard once for each of `backends` where there are any."""
    entrants = []
    for text in GRIDS[name].entrants:
        head, at, settings = text.partition("@")
        names = [f"regard:{b}{at}{settings}" for b in backends] if head == "regard" else []
        entrants += [parse_entrant(t) for t in names or [text]]
    return entrants
