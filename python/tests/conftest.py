"""Fixtures of several tests."""

import os

import pytest

os.environ.setdefault("REGARD_TUNING", "none")  # what `regard tune` kept for this user is none of a test's

import regard  # noqa: E402


@pytest.fixture
def restored_threads():
    """Puts the number of threads back after a test."""
    before = regard.get_num_threads()
    yield
    regard.set_num_threads(before)
