"""The vocabulary that the Harmony package needs, made from a model's own tokenizer."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from exllamav3_adapters.answer_format.find_format import FormatOptions, find_format
from exllamav3_adapters.answer_format.harmony_vocabulary import FILE_NAME, load_encoding, tiktoken_file
from exllamav3_adapters.errors import LoadFailed

TEMPLATE = "<|start|>assistant<|channel|>final<|message|>{{ text }}<|return|>"


def gpt2_characters() -> dict[int, str]:
    """As GPT-2's own code makes them, which is written otherwise than the code under test."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(256 + len(characters) - len(kept))
    return characters


@pytest.fixture(scope="module")
def model_folder(o200k_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a `tokenizer.json` like gpt-oss's: the same vocabulary, and two tokens that the file does not have."""
    characters = gpt2_characters()
    vocabulary = {}
    for line in (o200k_folder / FILE_NAME).read_bytes().splitlines():
        token, rank = line.split()
        vocabulary["".join(characters[byte] for byte in base64.b64decode(token))] = int(rank)
    vocabulary |= {"<|startoftext|>": 199_998, "<|endoftext|>": 199_999}
    folder = tmp_path_factory.mktemp("gpt-oss")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary}}))
    return folder


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_file_is_the_very_one_that_the_package_would_fetch(model_folder: Path, o200k_folder: Path) -> None:
    assert tiktoken_file(model_folder / "tokenizer.json") == (o200k_folder / FILE_NAME).read_bytes()


def test_it_is_written_into_the_users_cache_once(model_folder: Path, empty_cache: Path) -> None:
    load_encoding(model_folder)
    [written] = empty_cache.rglob("*.tiktoken")
    assert load_encoding(None).encode("hello", allowed_special="all") == [24912]
    assert [path for path in empty_cache.rglob("*") if path.is_file()] == [written]


def test_it_is_taken_from_tiktokens_cache_where_that_has_it(
    o200k_folder: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_cache / "fb374d419588a4632f3f557e76b4b70aebbca790").symlink_to(o200k_folder / FILE_NAME)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(empty_cache))
    assert load_encoding(None).encode("hello", allowed_special="all") == [24912]


def test_a_damaged_file_is_written_again(model_folder: Path, empty_cache: Path) -> None:
    damaged = empty_cache / "litellm-exllamav3" / "harmony" / FILE_NAME
    damaged.parent.mkdir(parents=True)
    damaged.write_text("aGVsbG8= 0\n")
    assert load_encoding(model_folder).encode("hello", allowed_special="all") == [24912]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model": {"vocab": []}}', '{"model": {"vocab": {"語": 1}}}'])
def test_a_tokenizer_that_cannot_be_read_is_named(content: str | None, empty_cache: Path) -> None:
    if content is not None:
        (empty_cache / "tokenizer.json").write_text(content)
    with pytest.raises(LoadFailed, match=r"tokenizer\.json could not be read.*gpt-oss"):
        load_encoding(empty_cache)


def test_another_models_vocabulary_is_refused(empty_cache: Path) -> None:
    (empty_cache / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    with pytest.raises(LoadFailed, match="not that of gpt-oss"):
        load_encoding(empty_cache)


def test_a_model_without_a_folder_is_told_what_to_do(empty_cache: Path) -> None:
    with pytest.raises(LoadFailed, match="TIKTOKEN_ENCODINGS_BASE"):
        load_encoding(None)


def test_the_load_of_a_harmony_model_fails_where_its_answers_could_not_be_read(empty_cache: Path) -> None:
    with pytest.raises(LoadFailed, match=r"tokenizer\.json"):
        find_format([TEMPLATE], FormatOptions(model_dir=str(empty_cache)), knows_tools=True)


def test_a_harmony_template_is_known_by_its_channels(model_folder: Path, empty_cache: Path) -> None:
    found = find_format([TEMPLATE], FormatOptions(model_dir=str(model_folder)), knows_tools=True)
    assert found.tool_format == "harmony"
    assert found.reasoning is not None
    assert {"<|channel|>", "<|message|>"} <= found.tags
