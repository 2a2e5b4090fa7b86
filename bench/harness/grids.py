"""The built-in grids: which cases, and who takes part.

A grid is (cases, entrants). An entrant is a name, or regard[:BACKEND]@key=value+...: regard in a
process of its own under other settings. Adding a grid for another kind of case (decode: sq1,
backward: the word grad) is adding a list here.
"""

import dataclasses

from .cases import parse_case

PEERS = ("torch", "onnxruntime", "openvino", "regard")

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

GRIDS = {
    "forward": (FORWARD, PEERS),
    "shapes": (SHAPES, PEERS),
    "threads": (THREADS, ("regard@threads=1", "regard@threads=2")),
    "isa": (ISA, ("regard@isa=scalar", "regard@isa=avx2", "regard@isa=avx512",
                  "regard@isa=avx512_bf16")),
}


@dataclasses.dataclass(frozen=True)
class Entrant:
    """One column of the table."""

    name: str  # as written; the key of its figures
    library: str  # torch, torch_math, onnxruntime, openvino, regard
    backend: str | None = None  # regard's: flash, efficient, math
    threads: int | None = None  # None: the run's
    isa: str | None = None  # None: the machine's

    @property
    def own_process(self):
        """regard reads its environment once, so other settings need another process."""
        return self.threads is not None or self.isa is not None


def parse_entrant(text):
    """"regard", "regard:flash", "regard:math@threads=1+isa=avx2", "torch"."""
    head, _, settings = text.partition("@")
    library, _, backend = head.partition(":")
    found = dict(item.split("=", 1) for item in settings.split("+") if "=" in item)
    unknown = set(found) - {"threads", "isa"}
    if unknown or (settings and not found) or (backend and library != "regard"):
        raise ValueError(f"{text!r}: expected NAME or regard[:BACKEND][@threads=N+isa=NAME]")
    if library not in ("torch", "torch_math", "onnxruntime", "openvino", "regard"):
        raise ValueError(f"{text!r}: nobody is called {library!r}")
    if settings and library != "regard":
        raise ValueError(f"{text!r}: only regard runs in a process of its own")
    threads = int(found["threads"]) if "threads" in found else None
    return Entrant(text, library, backend or None, threads, found.get("isa"))


def grid_cases(name):
    return [parse_case(line) for line in GRIDS[name][0].splitlines() if line.strip()]


def grid_entrants(name, backends=()):
    """The grid's entrants; regard once for each of `backends` where there are any."""
    entrants = []
    for text in GRIDS[name][1]:
        head, at, settings = text.partition("@")
        names = [f"regard:{b}{at}{settings}" for b in backends] if head == "regard" else []
        entrants += [parse_entrant(t) for t in names or [text]]
    return entrants
