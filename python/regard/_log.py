"""The library's log as Python's logger "regard"; the compiled part starts it at the first call."""

from __future__ import annotations

import logging
import sys

LOGGER = logging.getLogger("regard")
_LEVELS = {"select": logging.INFO, "trace": logging.DEBUG}  # by REGARD_LOG's words


def _has_other_handler(own: logging.Handler) -> bool:
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        if any(handler is not own for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


class _Stderr(logging.Handler):
    """Writes REGARD_LOG's lines where C++ writes them, unless the program has a handler for them."""

    def emit(self, record: logging.LogRecord) -> None:
        if not _has_other_handler(self):
            sys.stderr.write(record.getMessage() + "\n")


def start(word: str) -> logging.Logger:
    """The logger, with the level that REGARD_LOG states where the program has set none."""
    level = _LEVELS.get(word)
    if level is not None and not any(isinstance(x, _Stderr) for x in LOGGER.handlers):
        LOGGER.addHandler(_Stderr())
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(level)
    return LOGGER
