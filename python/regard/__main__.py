"""python -m regard: the documents, offline. The command `regard` has the other verbs."""

from __future__ import annotations

import argparse
import os
import sys

from . import _core, _docs


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m regard",
        description="regard's documents. The command `regard` explains and measures calls.")
    parser.add_argument("--version", action="version", version=f"regard {_core.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    docs = verbs.add_parser("docs", help="list the documents, or print one")
    docs.add_argument("page", nargs="?", metavar="PAGE", help="a page's name, as python")
    arguments = parser.parse_args(words)
    try:
        text = _docs.listing() if arguments.page is None else _docs.page(arguments.page)
    except LookupError as error:
        print(f"python -m regard docs: {error.args[0]}", file=sys.stderr)
        return 2
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:  # a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
