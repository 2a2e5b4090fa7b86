"""Fixtures of several tests."""

import pytest

import regard


@pytest.fixture
def restored_threads():
    """Puts the number of threads back after a test."""
    before = regard.get_num_threads()
    yield
    regard.set_num_threads(before)
