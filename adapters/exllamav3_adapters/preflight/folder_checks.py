"""Whether a folder holds a whole EXL3 model with all that serving needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from exllamav3_adapters.chat_template import find_chat_template
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.preflight.byte_size import shown_bytes
from exllamav3_adapters.preflight.finding import Finding
from exllamav3_adapters.preflight.model_folder import ModelFolder
from exllamav3_adapters.preflight.weight_format import EXL3, weight_format

_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model")
_MOST_NAMED: Final = 3
_CONVERT: Final = (
    "exllamav3 loads EXL3: download that version of the model, or convert its original with exllamav3's convert.py"
)


def folder_findings(folder: ModelFolder, option: str) -> Iterator[Finding]:
    """`option` is the setting that names the folder. What cannot be judged after an earlier fault is left out."""
    if not folder.exists:
        yield Finding(
            subject=option, fault=f"there is no folder {folder.path}", remedy="correct the path, or download the model"
        )
        return
    if not folder.files:
        yield Finding(subject=option, fault=_empty(folder.path), remedy=_empty_remedy(folder.path))
        return
    form = weight_format(folder)
    if form != EXL3 and not folder.broken:
        yield _not_exl3(folder, option, form)
        if form in ("GGUF", None):
            return
    yield from _config_findings(folder, option)
    yield from _shard_findings(folder, option)


def text_findings(folder: ModelFolder, chat_template: str | None) -> Iterator[Finding]:
    """Of the files that turn chats into tokens. `chat_template` as in `ModelOptions`."""
    if not any(name in folder.files for name in _TOKENIZERS):
        yield Finding(
            subject="model.model_dir",
            fault=f"{folder.path} has no tokenizer ({' or '.join(_TOKENIZERS)})",
            remedy="copy it from the original model's folder",
        )
    try:
        find_chat_template(folder.path, chat_template)
    except LoadFailed as error:
        fault, _, remedy = error.message.rstrip(".").rpartition(". ")
        remedy = remedy[:1].lower() + remedy[1:]
        yield Finding(subject="model.chat_template", fault=fault or remedy, remedy=remedy if fault else "")


def architecture_findings(folder: ModelFolder, known: Collection[str], option: str) -> Iterator[Finding]:
    """`known` are the names of exllamav3's architectures."""
    named = folder.config.get("architectures")
    if not isinstance(named, list) or not named or named[0] in known:
        return
    near = get_close_matches(str(named[0]), known, n=_MOST_NAMED, cutoff=0.6)
    likes = f"; near names that it has: {', '.join(near)}" if near else ""
    yield Finding(
        subject=option,
        fault=f"the architecture {named[0]} of {folder.path / 'config.json'} is not one that exllamav3 has{likes}",
        remedy="use another model, or a newer exllamav3 if that has it",
    )


def _config_findings(folder: ModelFolder, option: str) -> Iterator[Finding]:
    path = folder.path / "config.json"
    if "config.json" not in folder.files:
        yield Finding(subject=option, fault=f"{path} is missing", remedy="download the model again, whole")
    elif folder.config_fault is not None:
        yield Finding(subject=option, fault=f"{path} {folder.config_fault}", remedy="download the file again")
    elif not isinstance(folder.config.get("architectures"), list) or len(folder.config["architectures"]) != 1:
        yield Finding(
            subject=option,
            fault=f"{path} does not name one architecture",
            remedy="set architectures to a list of one, as in the original model's",
        )


def _shard_findings(folder: ModelFolder, option: str) -> Iterator[Finding]:
    for name, why in folder.broken.items():
        yield Finding(subject=option, fault=f"{folder.path / name} is damaged: {why}", remedy="download it again")
    missing = sorted(folder.indexed - folder.files)
    if missing:
        shown = ", ".join(missing[:_MOST_NAMED]) + (", ..." if len(missing) > _MOST_NAMED else "")
        yield Finding(
            subject=option,
            fault=f"{len(missing)} of the {len(folder.indexed)} files that model.safetensors.index.json names are "
            f"missing in {folder.path} ({shown})",
            remedy="finish the download",
        )


def _not_exl3(folder: ModelFolder, option: str, form: str | None) -> Finding:
    if form is None:
        return Finding(
            subject=option,
            fault=f"{folder.path} holds no weights (*.safetensors)",
            remedy="finish the download, or correct the path",
        )
    if form == "unquantised":
        return Finding(
            severity="warning",
            subject=option,
            fault=f"the weights in {folder.path} are not quantised: exllamav3 loads them at 16 bits each, "
            f"{shown_bytes(folder.weight_bytes)}",
            remedy="use an EXL3 version of the model, which takes a quarter of that at 4 bits",
        )
    return Finding(subject=option, fault=f"the weights in {folder.path} are {form}, not EXL3", remedy=_CONVERT)


def _empty(path: Path) -> str:
    return f"{path} holds no files" + (", only folders" if any(path.iterdir()) else "")


def _empty_remedy(path: Path) -> str:
    inner = sorted(entry.name for entry in path.iterdir() if (entry / "config.json").is_file())
    return f"set model_name to one of {', '.join(inner[:_MOST_NAMED])}" if inner else "download the model there"
