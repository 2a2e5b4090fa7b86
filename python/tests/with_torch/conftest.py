"""These tests need PyTorch; ./dev torch makes the environment that they run in."""

import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # reference.py
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    torch.set_num_threads(1)  # the tensors are tiny, and waiting threads slow others down
