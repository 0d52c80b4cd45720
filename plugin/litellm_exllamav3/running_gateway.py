"""The one gateway of this process: a proxy's from its start to its end, or a library's from the first use."""

from __future__ import annotations

import asyncio
import difflib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, NoReturn

from exllamav3_adapters.errors import EngineUnavailable, InvalidRequest
from litellm_exllamav3.faults import SettingsError
from litellm_exllamav3.gateway import Gateway
from litellm_exllamav3.lifecycle import Lifecycle
from litellm_exllamav3.model_card import card_from_engine, card_from_settings
from litellm_exllamav3.nonces import NonceRules
from litellm_exllamav3.proxy_log import show_log
from litellm_exllamav3.served_model import ServedModel
from litellm_exllamav3.workers import TooManyWorkers

logger = logging.getLogger(__name__)

CONFIG_VARIABLE: Final = "LITELLM_EXLLAMAV3_CONFIG"
_STARTUP_FAILED: Final = 3
"""The exit status of a uvicorn whose application does not start."""


class UnknownModel(InvalidRequest):
    """A model key that is not in the config."""


class _Process:
    """What this process runs. On the loop only."""

    gateway: Gateway | None = None
    loop: asyncio.AbstractEventLoop | None = None


def current_gateway() -> Gateway | None:
    """The gateway, if it has been started."""
    return _Process.gateway


def running_gateway() -> Gateway:
    """The gateway, which a library's first use opens and starts from the config that `LITELLM_EXLLAMAV3_CONFIG` names.

    Called on the loop that is to serve. Raises `EngineUnavailable` where there is no usable config.
    """
    loop = asyncio.get_running_loop()
    if _Process.loop is not None and _Process.loop is not loop and _Process.loop.is_closed():
        _Process.gateway = None  # A library may run one loop after another; what the last one ran ended with it.
    if _Process.gateway is None:
        path = os.environ.get(CONFIG_VARIABLE)
        if not path:
            raise EngineUnavailable(
                "no proxy has started exllamav3 models in this process; to use them as a library, set "
                f"{CONFIG_VARIABLE} to a config file with exllamav3_settings"
            )
        try:
            start(Gateway.open(path, os.environ))
        except (SettingsError, TooManyWorkers) as error:
            raise EngineUnavailable(str(error)) from None
    if _Process.loop is not loop:
        raise EngineUnavailable("exllamav3 models answer on the event loop that first used them, and this is another")
    assert _Process.gateway is not None
    return _Process.gateway


def start(gateway: Gateway) -> None:
    """Starts an opened gateway on the running loop and makes it the process's one."""
    gateway.start()
    _Process.gateway, _Process.loop = gateway, asyncio.get_running_loop()


def start_in_proxy(proxy_server: ModuleType | None, publish: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Opens and starts the gateway if LiteLLM's proxy is starting here: it loads a config file, on a loop.

    `publish` is told each model's card (`model_card.py`), now and when it has been loaded.
    A config that cannot be used ends the process, with all its faults on standard error.
    """
    path = getattr(proxy_server, "user_config_file_path", None)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if proxy_server is None or not path or _Process.gateway is not None:
        return
    show_log(os.environ)
    try:
        gateway = Gateway.open(path, os.environ, on_loaded=lambda info: publish(info.model_key, card_from_engine(info)))
    except (SettingsError, TooManyWorkers) as error:
        _end_process(error)
    for key, settings in gateway.settings.models.items():
        publish(key, card_from_settings(settings))
    start(gateway)
    lifecycle = Lifecycle(loop, on_signal=gateway.begin_stop, stop=gateway.stop)
    lifecycle.chain_signals()
    lifecycle.wrap_shutdown(proxy_server)


def served_model(gateway: Gateway, key: str) -> ServedModel:
    """The model under the key. Raises `UnknownModel`, which names the nearest key."""
    model = gateway.model(key)
    if model is not None:
        return model
    nearest = difflib.get_close_matches(key, list(gateway.models), n=1, cutoff=0)
    hint = f" The nearest configured model is exllamav3/{nearest[0]}." if nearest else ""
    raise UnknownModel(f"There is no model 'exllamav3/{key}' in exllamav3_settings.{hint}", "model")


def nonce_rules(gateway: Gateway, key: str) -> NonceRules:
    """The compiled nonce rules of a configured model."""
    return _compiled(gateway.settings.models[key].capture.nonces)


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> NonceRules:
    return NonceRules(patterns)


def _end_process(error: SettingsError | TooManyWorkers) -> NoReturn:
    """Ends the process at once. Raised instead, uvicorn would show the error at the end of 400 lines of traceback."""
    sys.stderr.write(f"\nlitellm-exllamav3 cannot start.\n{error}\n")
    sys.stderr.flush()
    logging.shutdown()
    if multiprocessing.parent_process() is not None:
        # A supervisor would start this worker again and again.
        os.kill(os.getppid(), signal.SIGTERM)
    os._exit(_STARTUP_FAILED)
