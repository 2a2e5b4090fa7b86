"""Arithmetic of alternating rounds. Every figure is a ratio within a round, then the median over
the rounds: a drift of the machine's speed hits both sides of a ratio alike."""

from statistics import median


def ratios(numerators, denominators):
    """One ratio for each round that both sides have."""
    return [a / b for a, b in zip(numerators, denominators) if b]


def median_ratio(numerators, denominators):
    """The median of the ratios of each round, None where there is none."""
    found = ratios(numerators, denominators)
    return median(found) if found else None


def quartiles(values):
    """(lower, upper), by linear interpolation; both are the value where there is one."""
    ordered = sorted(values)
    return tuple(_at(ordered, share * (len(ordered) - 1)) for share in (0.25, 0.75))


def _at(ordered, position):
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
