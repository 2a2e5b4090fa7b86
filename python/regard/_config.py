"""The build and the machine."""

from __future__ import annotations

import json
import platform
from typing import Any

import numpy

from . import _core


def show_config(mode: str = "stdout") -> dict[str, Any] | None:
    """Prints the version, machine, backends and counters as JSON; mode="dicts" returns them.

        >>> import regard
        >>> sorted(regard.show_config("dicts"))[:3]
        ['backends', 'counters', 'extension']

    Raises ValueError for another mode.

    More: `python -m regard docs python`.
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"mode ({mode!r}) must be 'stdout' or 'dicts'")
    machine = json.loads(_core.environment_json())
    backends = {f"{b['device']} {b['backend']}": b["not_built_reason"] or "built"
                for b in _core.devices()}
    config = {"regard": _core.__version__, "python": platform.python_version(),
              "numpy": numpy.__version__, "extension": _core.__file__, "machine": machine,
              "backends": backends, "counters": _core.counters()}
    if mode == "dicts":
        return config
    print(json.dumps(config, indent=2))
    return None
