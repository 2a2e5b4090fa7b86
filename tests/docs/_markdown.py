"""What the tests of the documents share: reading Markdown, finding what this build made."""

import os
import pathlib
import re
from dataclasses import dataclass

ROOT = pathlib.Path(os.environ.get("REGARD_DEV_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("REGARD_DEV_BUILD_DIR", ROOT / "build" / "dev"))
CLI = os.environ.get("REGARD_DEV_CLI", "")

MARK = re.compile(r"<!-- docs-test: (.+?) -->")


@dataclass
class Block:
    """A fenced block; `mark` is the text of the docs-test comment right above it, or ""."""

    path: pathlib.Path
    line: int
    language: str
    mark: str
    text: str

    def __str__(self):
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def documents():
    """Every Markdown file that a reader is sent to."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("**/*.md")),
            *sorted((ROOT / "examples").glob("**/*.md"))]


def blocks(path):
    found, mark, open_block = [], "", None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if open_block is not None:
            if line == "```":
                open_block.text = "\n".join(open_block.text) + "\n"
                found.append(open_block)
                open_block, mark = None, ""
            else:
                open_block.text.append(line)
        elif line.startswith("```"):
            open_block = Block(path, number, line[3:].strip(), mark, [])
        elif match := MARK.fullmatch(line.strip()):
            mark = match.group(1)
        elif line.strip():
            mark = ""
    if open_block is not None:
        raise ValueError(f"{open_block}: a block that never ends")
    return found


def all_blocks(language):
    return [b for path in documents() for b in blocks(path) if b.language == language]


def prose(path):
    """The text without fenced blocks and inline code."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def anchors(path):
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", text, flags=re.M)}


def cache_variable(name):
    """A variable of the build's CMake cache, or ""."""
    cache = BUILD / "CMakeCache.txt"
    match = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), flags=re.M)
    return match.group(1) if match else ""
