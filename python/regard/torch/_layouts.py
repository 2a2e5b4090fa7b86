"""Layouts of a sequence over ranks: which positions each rank holds. Pure functions of numbers."""

from __future__ import annotations

LAYOUTS = ("contiguous", "zigzag", "per_document")
Pieces = list[tuple[int, int]]  # (first position, length), in the order of a rank's tensors


def _even(length: int, parts: int) -> Pieces:
    """Lengths differ by one at most, the longer ones first."""
    short, longer = divmod(length, parts)
    begins = [n * short + min(n, longer) for n in range(parts + 1)]
    return [(a, b - a) for a, b in zip(begins, begins[1:])]


def joined(pieces: Pieces) -> Pieces:
    """Without empty pieces, and with adjacent ones as one."""
    found: Pieces = []
    for begin, length in pieces:
        if found and sum(found[-1]) == begin:
            found[-1] = (found[-1][0], found[-1][1] + length)
        elif length:
            found.append((begin, length))
    return found


def pieces_of(layout: str, length: int, ranks: int, starts: list[int] | None = None) -> list[Pieces]:
    """The pieces of each rank. starts: where documents begin, and the end of the last.

    contiguous: rank r has the r-th of `ranks` even parts. zigzag: chunks r and 2 * ranks - 1 - r of twice as many,
    so that causal attention gives every rank as much to compute. per_document: the same of every document; of those
    shorter than twice the ranks the whole to the rank that has the fewest positions so far.
    """
    if layout == "contiguous":
        return [joined([piece]) for piece in _even(length, ranks)]
    if layout == "zigzag" or starts is None:
        starts = [0, length]
        small = 0
    else:
        small = 2 * ranks
    found: list[Pieces] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for first, end in zip(starts, starts[1:]):
        if end - first < small:
            rank = load.index(min(load))
            found[rank].append((first, end - first))
            load[rank] += end - first
            continue
        chunks = [(first + begin, count) for begin, count in _even(end - first, 2 * ranks)]
        for rank in range(ranks):
            both = (chunks[rank], chunks[2 * ranks - 1 - rank])
            found[rank] += both
            load[rank] += sum(count for _, count in both)
    return [joined(own) for own in found]


def within_documents(pieces: Pieces, starts: list[int] | None) -> Pieces:
    """The same positions, cut where a document begins."""
    if starts is None:
        return pieces
    cut: Pieces = []
    for begin, length in pieces:
        inside = sorted({begin, *(s for s in starts if begin < s < begin + length), begin + length})
        cut += [(a, b - a) for a, b in zip(inside, inside[1:])]
    return cut
