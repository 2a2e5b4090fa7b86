"""python -m regard docs lists and prints the documents that the package contains."""

import pathlib
import re
import subprocess
import sys

import regard
from documents import ROOT

PAGES = {path.stem: path.read_text() for path in ROOT.glob("docs/*.md")}


def run(*words):
    return subprocess.run([sys.executable, "-m", "regard", *words], capture_output=True, text=True,
                          timeout=60)


def test_the_list_has_every_page_with_its_title():
    ran = run("docs")
    assert ran.returncode == 0 and ran.stderr == ""
    rows = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines())
    assert rows == {name: text.splitlines()[0].removeprefix("# ") for name, text in PAGES.items()}


def test_a_page_is_printed_as_it_is():
    for word in ("python", "python.md", "docs/python.md"):
        ran = run("docs", word)
        assert ran.returncode == 0 and ran.stdout == PAGES["python"]


def test_an_unknown_page_is_an_error_that_names_the_pages():
    ran = run("docs", "semantic")
    assert ran.returncode == 2 and ran.stdout == ""
    assert "page ('semantic') must be one of" in ran.stderr
    assert "did you mean semantics?" in ran.stderr and "quickstart" in ran.stderr
    assert run().returncode == 2 and "docs" in run("--help").stdout
    assert run("--version").stdout == f"regard {regard.__version__}\n"


def test_docstrings_name_pages_that_exist():
    package = pathlib.Path(regard.__file__).parent
    sources = [path for pattern in ("*.py", "*/*.py") for path in package.glob(pattern)]
    texts = [path.read_text() for path in sources] + [
        getattr(regard, name).__doc__ or "" for name in regard.__all__ if name != "__version__"]
    named = {name for text in texts for name in re.findall(r"python -m regard docs (\w+)", text)}
    assert named and named <= set(PAGES)
