"""Folders that the CPU engine does not take are refused with their reason, before torch reads weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_model import write_tiny_hybrid, write_tiny_model

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.model import load_model
from exllamav3_adapters.errors import LoadFailed


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        load_model(folder, lambda progress: None)
    return caught.value.message


def test_progress_ends_with_all_steps_done(folder: Path) -> None:
    seen: list[LoadProgress] = []
    model = load_model(folder, seen.append)
    assert [progress.done for progress in seen] == [0, 1, 2, 3]
    assert {progress.total for progress in seen} == {3}
    assert model.context_length == 4096
    assert [site.num_kv_heads for site in model.get_cache_layers()] == [2, 2]
    assert model.get_recurrent_layers() == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no folder" in refusal(tmp_path / "nowhere")


def test_a_folder_without_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "no config.json" in refusal(folder)


def test_a_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "not readable JSON" in refusal(folder)


def test_a_folder_with_only_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "GGUF" in refusal(tmp_path)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "no *.safetensors (weights found: *.bin)" in refusal(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.gguf")
    assert "no *.safetensors (weights found: *.gguf)" in refusal(folder)
    (folder / "model.gguf").unlink()
    assert "no *.safetensors (weights found: none)" in refusal(folder)


def test_weights_whose_end_is_missing(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "could not load" in refusal(folder)


def test_weights_that_end_too_soon(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    assert "damaged" in refusal(folder)


def test_weights_that_lack_tensors_are_not_filled_with_noise(folder: Path) -> None:
    save_file({"model.norm.weight": torch.ones(64)}, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lacks" in refusal(folder)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(folder)


@pytest.mark.parametrize("method", ["exl3", "exl2", "gptq", "fp8"])
def test_a_quantised_folder_is_named(folder: Path, method: str) -> None:
    edit_config(folder, quantization_config={"quant_method": method})
    message = refusal(folder)
    assert method.upper() in message
    assert ("use engine: cuda" in message) is (method == "exl3")


@pytest.mark.parametrize(("tensor", "kind"), [("layer.trellis", "EXL3"), ("layer.q_weight", "EXL2")])
def test_quantised_tensors_are_found_where_the_config_is_silent(folder: Path, tensor: str, kind: str) -> None:
    save_file({tensor: torch.zeros(1)}, folder / "model.safetensors")
    assert kind in refusal(folder)


def test_an_architecture_that_nobody_knows(folder: Path) -> None:
    edit_config(folder, model_type="no_such_model", architectures=["NoSuchModel"])
    assert "no_such_model" in refusal(folder)


def test_an_encoder_is_no_language_model(folder: Path) -> None:
    edit_config(folder, model_type="t5", architectures=["T5Model"])
    assert "transformers could not load" in refusal(folder)


def test_a_hybrid_model_says_which_layers_keep_a_recurrent_state(tmp_path: Path) -> None:
    model = load_model(write_tiny_hybrid(tmp_path / "hybrid"), lambda progress: None)
    assert model.caps == {"recurrent_states": True}
    assert [site.layer_idx for site in model.get_recurrent_layers()] == [0, 2]
    assert [site.layer_idx for site in model.get_cache_layers()] == [1]


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "recurrent", "mamba2", num_heads=8, head_dim=16)
    assert "no layer has attention" in refusal(folder)


def test_a_recurrent_model_that_cannot_go_on_from_its_state_is_refused(tmp_path: Path) -> None:
    # Mamba's first generation starts anew with every chunk but a single token.
    folder = write_tiny_model(tmp_path / "mamba", "mamba")
    assert "does not run on engine cpu" in refusal(folder)


def test_a_model_that_wants_a_cache_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "minimax", "minimax")
    assert "MiniMax uses cache of its own" in refusal(folder)


def test_chunked_attention_is_not_supported(folder: Path) -> None:
    edit_config(folder, layer_types=["chunked_attention", "full_attention"])
    assert "chunked_attention" in refusal(folder)


def test_attention_outside_the_interface_is_refused(tmp_path: Path, write_model: Any) -> None:
    # Bloom adds a bias to its scores in code of its own.
    folder = write_model(tmp_path / "bloom", "bloom", n_layer=1, n_head=4)
    assert "transformers could not load" in refusal(folder) or "does not run on engine cpu" in refusal(folder)
