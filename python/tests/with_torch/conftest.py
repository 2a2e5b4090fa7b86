"""These tests need PyTorch; ./dev torch makes the environment that they run in."""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # reference.py
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import pytest
    import torch

    torch.set_num_threads(1)  # the tensors are tiny, and waiting threads slow others down

    @pytest.fixture
    def device_calls(monkeypatch):
        """CPU tensors go the way of a device, and a test must take it; compiled graphs of one way do
        not serve the other."""
        from regard.torch import _device

        calls = []
        run = _device._call
        monkeypatch.setattr(_device, "_call", lambda *args: calls.append(1) or run(*args))
        monkeypatch.setattr(_device, "takes", lambda q: True)
        torch._dynamo.reset()
        with torch._inductor.config.patch(force_disable_caches=True):
            yield
        torch._dynamo.reset()
        assert calls, "the way of a device was not taken"
