"""The documents for users, which the package contains: python -m regard docs."""

from __future__ import annotations

import difflib
import pathlib

_FOLDER = pathlib.Path(__file__).parent / "docs"


def pages() -> dict[str, str]:
    """{name: title} of every page."""
    titles = {}
    for path in sorted(_FOLDER.glob("*.md")):
        with path.open(encoding="utf-8") as file:
            titles[path.stem] = file.readline().removeprefix("#").strip()
    return titles


def page(name: str) -> str:
    """The text of a page, in Markdown. LookupError names the pages that there are."""
    known = pages()
    stem = name.removesuffix(".md").removeprefix("docs/")
    if stem not in known:
        near = difflib.get_close_matches(stem, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise LookupError(f"page ({name!r}) must be one of {', '.join(known) or 'none'}{hint}")
    return (_FOLDER / f"{stem}.md").read_text(encoding="utf-8")


def listing() -> str:
    """The pages with their titles, a line each."""
    titles = pages()
    width = max((len(name) for name in titles), default=0)
    return "\n".join(f"{name:{width}}  {title}" for name, title in titles.items())
