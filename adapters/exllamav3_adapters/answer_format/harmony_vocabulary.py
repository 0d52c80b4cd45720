"""The vocabulary that `openai-harmony` needs, from a model's own tokenizer rather than from the network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exllamav3_adapters.demo_model import cache_folder
from exllamav3_adapters.errors import LoadFailed

if TYPE_CHECKING:
    from openai_harmony import HarmonyEncoding

FILE_NAME: Final = "o200k_base.tiktoken"
_VARIABLE: Final = "TIKTOKEN_ENCODINGS_BASE"
"""Names the folder that `openai-harmony` looks in before it asks the network."""
_ADDRESS: Final = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_NUM_RANKS: Final = 199_998
_SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Of the file; the package takes no other."""


def load_encoding(model_folder: Path | None) -> HarmonyEncoding:
    """Blocks: 0.2 s, a few seconds the first time a user loads such a model. Raises `LoadFailed`.

    The file is taken from the folder that the environment names, then from this user's cache, where it is put first:
    from tiktoken's cache, which a gateway often has filled, or made from the model's `tokenizer.json`.
    """
    try:
        import openai_harmony  # noqa: F401
    except ImportError as error:
        raise LoadFailed(
            f"the model's answers are in Harmony, which needs a package ({error}). "
            "Install it with: pip install openai-harmony"
        ) from error
    configured = os.environ.get(_VARIABLE)
    if configured and (Path(configured) / FILE_NAME).is_file():
        return _loaded(Path(configured))
    folder = cache_folder() / "harmony"
    if not _is_intact(folder / FILE_NAME):
        _write(folder / FILE_NAME, _cached_by_tiktoken() or _from_tokenizer(model_folder))
    return _loaded(folder)


@cache
def _loaded(folder: Path) -> HarmonyEncoding:
    from openai_harmony import HarmonyEncodingName, HarmonyError, load_harmony_encoding

    with _environment(str(folder)):
        try:
            return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
        except HarmonyError as error:
            raise LoadFailed(f"{folder / FILE_NAME} is not the vocabulary of gpt-oss ({error}); remove it") from error


@contextlib.contextmanager
def _environment(folder: str) -> Iterator[None]:
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def _is_intact(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _SHA256
    except OSError:
        return False


def _cached_by_tiktoken() -> bytes | None:
    """tiktoken keeps what it fetched under the SHA-1 of the address."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    if not folder:
        return None
    path = Path(folder) / hashlib.sha1(_ADDRESS.encode(), usedforsecurity=False).hexdigest()
    return path.read_bytes() if _is_intact(path) else None


def _from_tokenizer(model_folder: Path | None) -> bytes:
    if model_folder is None:
        raise LoadFailed(
            f"the model's answers are in Harmony, whose parser needs {FILE_NAME}, and there is no model folder to "
            f"make it from; put that file into a folder and name the folder in {_VARIABLE}"
        )
    content = tiktoken_file(model_folder / "tokenizer.json")
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise LoadFailed(
            f"{model_folder / 'tokenizer.json'}: the vocabulary is not that of gpt-oss, which Harmony's parser needs; "
            "give the model its original tokenizer.json, or set model.tool_format to the form of its calls"
        )
    return content


def _write(path: Path, content: bytes) -> None:
    """Beside `path`, and renamed into place, so that several processes may do it at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f"{FILE_NAME}.partial-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(partial, path)
    except OSError as error:
        raise LoadFailed(
            f"{path} could not be written ({error}). It needs 4 MB; XDG_CACHE_HOME puts it elsewhere"
        ) from error


def tiktoken_file(tokenizer_json: Path) -> bytes:
    """The ranks of a byte-level BPE vocabulary in tiktoken's form: base64 of a token's bytes, a space, its rank.

    Raises `LoadFailed`.
    """
    try:
        vocabulary = json.loads(tokenizer_json.read_bytes())["model"]["vocab"]
        bytes_by_character = _bytes_by_character()
        ranked = sorted((rank, token) for token, rank in vocabulary.items() if rank < _NUM_RANKS)
        lines = [
            b"%b %d\n" % (base64.b64encode(bytes(bytes_by_character[char] for char in token)), rank)
            for rank, token in ranked
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadFailed(
            f"{tokenizer_json} could not be read as gpt-oss's vocabulary, which Harmony's parser needs ({error!r}); "
            "give the model its original tokenizer.json"
        ) from error
    return b"".join(lines)


def _bytes_by_character() -> dict[str, int]:
    """GPT-2's alphabet: a printable character stands for its own byte, the others for characters from 256 on."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + number): byte for number, byte in enumerate(others)}
