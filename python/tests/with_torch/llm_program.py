"""The program regard-llm: build/dev/tools/llm/regard-llm, or what REGARD_DEV_LLM names. A module of tests that imports
this is skipped where it was not built."""

import json
import os
import pathlib
import subprocess

import pytest

PROGRAM = pathlib.Path(os.environ.get("REGARD_DEV_LLM",
                                      pathlib.Path(__file__).resolve().parents[3] / "build/dev/tools/llm/regard-llm"))
if not PROGRAM.exists():
    pytest.skip(f"{PROGRAM} was not built", allow_module_level=True)

BACKENDS = ("math", "flash_attention", "efficient_attention", "auto")


def run(*words):
    """The ended process. Its threads sleep while they wait: those that spin slow other tests down."""
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=900,
                          env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"})


def document(*words):
    """What it prints with --json."""
    ran = run(*words, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
