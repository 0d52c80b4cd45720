"""The conversion up to its first kernel: exllamav3's converter takes our arguments, our model and our tokenizer."""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from exllamav3_adapters.cpu.install import install

install()

from exllamav3.conversion import convert_model
from exllamav3.conversion.allocation import create_q_strategy
from exllamav3.ext import exllamav3_ext
from exllamav3.modules import Linear
from gpu_check.model_shape import CARD_HYBRID, CARD_LLAMA, HybridShape, LlamaShape
from gpu_check.parts.models import BITS, HEAD_BITS, converter_arguments, is_exl3
from gpu_check.random_model import write_random_model

TILE = 128
STATE_WEIGHTS = {f"model.layers.0.linear_attn.{name}" for name in ("A_log", "dt_bias", "conv1d.weight")}
"""They belong to the delta net itself."""
SHAPES = [dataclasses.replace(CARD_LLAMA, layers=1), dataclasses.replace(CARD_HYBRID, layers=2)]


@pytest.fixture(scope="module", params=SHAPES, ids=["llama", "hybrid"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the sizes of the card's models, and fewer layers."""
    shape: LlamaShape | HybridShape = request.param
    folder = tmp_path_factory.mktemp("source") / "model"
    write_random_model(folder, shape)
    return folder


@pytest.fixture
def job(source: Path, tmp_path: Path) -> dict[str, Any]:
    """What the converter makes of our arguments."""
    arguments = converter_arguments(source, tmp_path / "work", tmp_path / "exl3")
    job, state, is_right, error = convert_model.prepare(convert_model.parser.parse_args(arguments))
    assert is_right, error
    assert state["next_module_idx"] == 0
    return dict(job)


def test_a_conversion_that_was_ended_goes_on(job: dict[str, Any], source: Path, tmp_path: Path) -> None:
    arguments = converter_arguments(source, tmp_path / "work", tmp_path / "exl3")
    assert arguments == ["-w", str(tmp_path / "work"), "-r"]
    again, _, is_right, error = convert_model.prepare(convert_model.parser.parse_args(arguments))
    assert is_right, error
    assert (again["in_dir"], again["out_dir"], again["bits"]) == (job["in_dir"], job["out_dir"], BITS)


def test_every_linear_layer_is_quantised_without_padding(job: dict[str, Any]) -> None:
    config, model, mtp, vision, tokenizer, is_calibrated = convert_model.get_base_model(job)
    assert is_calibrated
    assert tokenizer.actual_vocab_size == config.vocab_size
    strategy, bits = create_q_strategy(model, mtp, config, BITS, HEAD_BITS, 4, 0, vision, None, True)
    assert bits == BITS
    linears = [module for top in model.modules for module in top if isinstance(module, Linear)]
    quantised = [linear for linear in linears if linear.qmap is not None]
    assert {linear.key for linear in quantised} == set(strategy)
    for linear in quantised:
        assert (linear.in_features_unpadded % TILE, linear.out_features_unpadded % TILE) == (0, 0), linear.key


def test_exllamav3_loads_every_module_and_leaves_no_weight(
    job: dict[str, Any], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the converter does, module by module, but onto the CPU. Compiled code reads the file, and keeps the weights
    once more for its own forward."""
    for name in ("BC_LinearFP16", "BC_GatedRMSNorm"):
        monkeypatch.setattr(exllamav3_ext, name, lambda *weights: None, raising=False)
    config, model, *_ = convert_model.get_base_model(job)
    weights = load_file(source / "model.safetensors")
    config.stc.set_new_tensors(weights)
    for module in model.modules:
        module.load(torch.device("cpu"), keep_source_weights=True)
        assert all(linear.inner is not None for linear in module if isinstance(linear, Linear)), module.key
    keys = {module.key for top in model.modules for module in top if module.key}
    assert {name for name in weights if name.rpartition(".")[0] not in keys} - STATE_WEIGHTS == set()


def test_the_calibration_has_more_tokens_than_the_widest_layer_has_inputs(job: dict[str, Any]) -> None:
    config, model, _, _, tokenizer, _ = convert_model.get_base_model(job)
    rows, _ = convert_model.prepare_state(job, {"next_module_idx": 0}, config, model, tokenizer)
    widest = max(module.in_features for top in model.modules for module in top if isinstance(module, Linear))
    assert sum(row.shape[-1] for row in rows) > 4 * widest
    assert max(int(row.max()) for row in rows) < config.vocab_size


def test_a_folder_is_exl3_once_its_config_says_so(source: Path, tmp_path: Path) -> None:
    assert not is_exl3(source)
    assert not is_exl3(tmp_path)
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "exl3"}}))
    assert is_exl3(tmp_path)
