"""What a planted fault is."""

from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple
    emulated: bool = False  # in kernels that are tested in portable notation
