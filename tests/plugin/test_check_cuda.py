"""`litellm-exllamav3 check` of a model on GPUs: the real command, on this machine, without loading anything."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from exllamav3_adapters.preflight.estimate import DeviceEstimate, Estimate
from exllamav3_adapters.preflight.report import Report
from litellm_exllamav3.preflight import not_together

CONFIG = """
model_list:
  - {model_name: local, litellm_params: {model: exllamav3/good}}
litellm_settings:
  custom_provider_map: [{provider: exllamav3, custom_handler: litellm_exllamav3.provider.handler}]
  callbacks: [litellm_exllamav3.hooks.capture]
general_settings: {cancel_on_disconnect: true}
exllamav3_settings:
  models:
    good: {engine: cuda, model: {model_dir: good, max_seq_len: 2048}}
    dense: {engine: cuda, model: {model_dir: good, max_seq_len: 2048, moe_cpu_offload: 2}}
    gptq: {engine: cuda, model: {model_dir: gptq, max_seq_len: 2048}}
    short: {engine: cuda, model: {model_dir: short, max_seq_len: 2048}}
    unknown: {engine: cuda, model: {model_dir: unknown, max_seq_len: 2048}}
    vision: {engine: cuda, model: {model_dir: good, max_seq_len: 2048, vision: true}}
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "quantization_config": {"quant_method": "exl3", "bits": 4},
}


def write_model(folder: Path, **config: Any) -> Path:
    """Whole, as far as a check looks."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    header = json.dumps({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that it names lie beside it."""
    parent = tmp_path_factory.mktemp("check")
    write_model(parent / "good")
    write_model(parent / "gptq", quantization_config={"quant_method": "gptq"})
    write_model(parent / "unknown", architectures=["Llama9ForCausalLM"])
    shard = write_model(parent / "short") / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    (parent / "config.yaml").write_text(CONFIG)
    return parent / "config.yaml"


def check(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("litellm-exllamav3"), "check", *arguments, config]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def checked(config: Path) -> subprocess.CompletedProcess[str]:
    return check(config)


def about(key: str, checked: subprocess.CompletedProcess[str]) -> list[str]:
    """What was found of one model, without what is wrong with this machine, whichever that is."""
    return [line for line in checked.stderr.splitlines() if f": {key}: model." in line]


def test_the_estimate_stands_beside_the_settings(checked: subprocess.CompletedProcess[str]) -> None:
    assert about("good", checked) == []
    settings, _, estimate = checked.stdout.partition("estimate of the memory that exllamav3/good takes:\n")
    assert "model.cache_size" in settings
    assert "    cache                          2 MiB\n" in estimate


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("gptq", ["error: gptq: model.model_dir: ", "are GPTQ, not EXL3; ", "convert.py"]),
        ("short", ["error: short: model.model_dir: ", "is cut short", "download it again"]),
        ("unknown", ["error: unknown: model.model_dir: ", "Llama9ForCausalLM", "LlamaForCausalLM", "another model"]),
        ("vision", ["error: vision: model.vision: ", "has no vision component", "remove the option"]),
        ("dense", ["warning: dense: model.moe_cpu_offload: ", "has no experts", "remove it"]),
    ],
)
def test_a_broken_setup_is_named_with_its_remedy(
    checked: subprocess.CompletedProcess[str], key: str, told: list[str]
) -> None:
    (line,) = about(key, checked)
    assert all(part in line for part in told)


def test_an_error_fails_the_command(checked: subprocess.CompletedProcess[str]) -> None:
    assert checked.returncode == 1
    assert " errors, " in checked.stdout.splitlines()[-1]


def test_the_config_alone_can_be_checked(config: Path) -> None:
    checked = check(config, "--config-only")
    assert (checked.returncode, "error: " in checked.stderr) == (0, False)
    assert "estimate" not in checked.stdout


def test_all_of_it_is_there_for_programs(config: Path) -> None:
    model: dict[str, Any] = json.loads(check(config, "--json").stdout)["models"]["good"]
    assert model["settings"]["model.cache_size"] == {"value": "2048", "from": "default"}
    assert all(finding["fault"] for finding in model["findings"])
    assert model["estimate"]["devices"][0]["uses"]["cache"] == 2 * 2**20


def estimated(*, needed: int, usable: int) -> Report:
    device = DeviceEstimate(kind="gpu", device="cuda:0", free=usable, usable=usable, uses={"weights": needed})
    return Report(findings=(), estimate=Estimate(devices=(device,), page_bytes=1, checkpoint_bytes=0))


def test_models_that_fit_one_by_one_and_not_together_are_told_of() -> None:
    one = estimated(needed=6 * 2**30, usable=10 * 2**30)
    said = not_together({"a": one, "b": one})
    assert said is not None
    assert said.startswith("2 models need 12.00 GiB of the GPUs' memory together, and 10.00 GiB are usable; ")


def test_models_that_fit_together_are_not() -> None:
    one = estimated(needed=4 * 2**30, usable=10 * 2**30)
    assert not_together({"a": one, "b": one}) is None


def test_one_model_that_does_not_fit_is_its_own_finding() -> None:
    assert not_together({"a": estimated(needed=12 * 2**30, usable=10 * 2**30)}) is None
