from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from exllamav3_adapters.answer_format.find_format import tool_format_names
from litellm_exllamav3.cli import app
from litellm_exllamav3.settings_reference import settings_reference

ROOT = Path(__file__).parents[2]

CONFIG = """
model_list:
  - {model_name: local, litellm_params: {model: exllamav3/m}}
litellm_settings:
  custom_provider_map: [{provider: exllamav3, custom_handler: litellm_exllamav3.provider.handler}]
  callbacks: [litellm_exllamav3.hooks.capture]
general_settings: {cancel_on_disconnect: true}
exllamav3_settings:
  models:
    m:
      engine: cpu
      max_queue: os.environ/SEKRIT_QUEUE
      model: {model_dir: demo, max_seq_len: 1000}
      memory: {warm_prefixes: [sekrit prompt]}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def check(config: Path, **environ: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["check", str(config)], env=environ)
    return result.exit_code, result.stdout, result.stderr


def row(output: str, option: str) -> list[str]:
    """The cells of an option's row."""
    (line,) = [line for line in output.splitlines() if f" {option} " in line]
    return [cell.strip() for cell in line.strip("│┃| ").replace("|", "│").split("│")]


def test_a_valid_config_is_shown_as_it_takes_effect(config: Path) -> None:
    code, output, errors = check(config, SEKRIT_QUEUE="12345")
    assert (code, errors) == (0, "")
    assert row(output, "model.max_seq_len") == ["model.max_seq_len", "1000", "set"]
    assert row(output, "model.cache_size") == ["model.cache_size", "1024", "default"]
    assert row(output, "model.chunk_size") == ["model.chunk_size", "512", "default"]
    assert f"{config}: valid" in output


def test_what_the_engine_does_not_have_yet_is_shown_on_demand(config: Path) -> None:
    assert "model.gpu_split" not in check(config, SEKRIT_QUEUE="1")[1]
    shown = CliRunner().invoke(app, ["check", "--all", str(config)], env={"SEKRIT_QUEUE": "1"}).stdout
    assert "model.gpu_split" in shown


def test_neither_a_secret_nor_a_prompt_is_shown(config: Path) -> None:
    _, output, _ = check(config, SEKRIT_QUEUE="12345")
    assert row(output, "max_queue") == ["max_queue", "os.environ/SEKRIT_QUEUE", "set"]
    assert row(output, "memory.warm_prefixes") == ["memory.warm_prefixes", "1 entry", "set"]
    assert "12345" not in output
    assert "sekrit prompt" not in output


def test_faults_go_to_stderr_and_fail_the_command(config: Path) -> None:
    config.write_text(CONFIG.replace("engine: cpu", "engine: cpu\n      loading: 1"))
    code, output, errors = check(config)
    assert (code, output) == (1, "")
    assert f"{config}: 2 faults" in errors
    assert "loading: unknown option; the nearest valid one is load" in errors
    assert "SEKRIT_QUEUE is not set" in errors


def test_warnings_go_to_stderr_and_do_not_fail_the_command(config: Path) -> None:
    config.write_text(CONFIG.replace("cancel_on_disconnect: true", ""))
    code, output, errors = check(config, SEKRIT_QUEUE="12345")
    assert code == 0
    assert errors.startswith("warning: line 7: general_settings.cancel_on_disconnect: is not true")
    assert output.endswith("valid, 1 warning\n")


def test_the_command_wraps_no_path_when_it_is_piped(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 30)
    folder.mkdir()
    config = folder / "config.yaml"
    config.write_text(CONFIG.replace("model_dir: demo", "model_dir: ."))
    command = Path(sys.executable).with_name("litellm-exllamav3")
    environ = {**os.environ, "SEKRIT_QUEUE": "12345", "COLUMNS": "80"}
    result = subprocess.run([command, "check", config], capture_output=True, text=True, env=environ, timeout=60)
    assert result.returncode == 0, result.stderr
    assert row(result.stdout, "model.model_dir") == ["model.model_dir", str(folder), "set"]
    assert f"state_dir: {folder / 'state'}" in result.stdout.splitlines()


def test_the_readme_holds_the_reference() -> None:
    readme = (ROOT / "README.md").read_text()
    _, _, rest = readme.partition("<!-- settings-reference -->")
    section, end, _ = rest.partition("<!-- /settings-reference -->")
    assert end
    assert section.strip() == settings_reference().strip(), "run `litellm-exllamav3 settings-reference` and paste"


def test_the_reference_is_printed() -> None:
    assert CliRunner().invoke(app, ["settings-reference"]).stdout == settings_reference()


def test_the_shipped_config_is_valid_and_has_no_warnings() -> None:
    code, _, errors = check(ROOT / "litellm_config.yaml")
    assert (code, errors) == (0, "")


def test_the_readme_names_every_form_of_tool_calls() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in tool_format_names() if f"`{name}`" not in readme] == []
