"""The examples in docstrings, and running them."""

import doctest
import re


def run_examples(name, thing):
    """Runs the example of a public name, which each has, and which names a page of the documents."""
    text = thing.__doc__ or ""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples, f"the docstring of {name} has no example"
    report = []
    failures, _ = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert failures == 0, "".join(report)
    assert re.search(r"`python -m regard docs \w+`", text), f"{name} names no page"
