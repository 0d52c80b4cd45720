"""The plugin's and the engines' lines in a proxy's log. LiteLLM shows only its own loggers below WARNING."""

from __future__ import annotations

import logging
from collections.abc import Mapping

LOGGERS = ("litellm_exllamav3", "exllamav3_adapters")
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LEVEL_VARIABLE = "LITELLM_LOG"
"""LiteLLM's own variable: DEBUG, INFO, WARNING, ERROR. Here INFO where it is not set."""


def show_log(environ: Mapping[str, str]) -> None:
    """Shows loads, replays and what went wrong, on standard error. Leaves alone what somebody has configured.

    May be called more than once.
    """
    level = logging.getLevelNamesMapping().get(environ.get(LEVEL_VARIABLE, "").upper(), logging.INFO)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(level)
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(FORMAT))
            logger.addHandler(handler)
