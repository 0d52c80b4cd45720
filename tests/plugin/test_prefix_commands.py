from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from exllamav3_adapters.contract import Head
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.cli import app
from litellm_exllamav3.config_file import load_settings
from litellm_exllamav3.head import request_head

CONFIG = """
model_list:
  - {model_name: local, litellm_params: {model: exllamav3/m}}
litellm_settings:
  custom_provider_map: [{provider: exllamav3, custom_handler: litellm_exllamav3.provider.handler}]
  callbacks: [litellm_exllamav3.hooks.capture]
general_settings: {cancel_on_disconnect: true}
exllamav3_settings:
  state_dir: ./state
  models:
    m:
      engine: fake
      model: {model_dir: fake, max_seq_len: 8192}
"""
SYSTEM = {"role": "system", "content": "You guard the sekrit garden. " * 80}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def keep_one_head(config: Path) -> None:
    async def keep() -> None:
        settings = load_settings(config, {})
        capture = await Capture.open(
            Path(settings.state_dir), {key: model.capture for key, model in settings.models.items()}
        )
        head = request_head({"messages": [SYSTEM, {"role": "user", "content": "Hi"}]}, "acompletion")
        assert head is not None
        capture.observe("m", head, "key")
        assert capture.keep(capture.observe("m", head, "key"), Head(messages=[SYSTEM]), 600)
        await capture.close()

    asyncio.run(keep())


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def listed(config: Path) -> list[dict[str, object]]:
    result = run("prefixes", config, "--json")
    assert result.exit_code == 0
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def test_no_store_is_an_empty_list_and_makes_no_file(config: Path, tmp_path: Path) -> None:
    assert listed(config) == []
    assert not (tmp_path / "state" / "prefixes.db").exists()


def test_a_kept_head_is_listed_without_its_text(config: Path) -> None:
    keep_one_head(config)
    (row,) = listed(config)
    assert (row["model"], row["tokens"], row["messages"], row["tools"]) == ("m", 600, 1, 0)
    assert "sekrit" not in run("prefixes", config).stdout


def test_a_forgotten_head_leaves_no_byte_behind(config: Path, tmp_path: Path) -> None:
    keep_one_head(config)
    (row,) = listed(config)
    result = run("forget", config, row["digest"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert listed(config) == []
    assert not any(b"sekrit" in path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())


def test_the_digits_that_the_table_shows_are_enough_to_forget(config: Path) -> None:
    keep_one_head(config)
    (row,) = listed(config)
    shown = str(row["digest"])[:12]
    assert f" {shown} " in run("prefixes", config).stdout
    assert run("forget", config, shown).exit_code == 0
    assert listed(config) == []


def test_digits_that_name_nothing_forget_nothing(config: Path) -> None:
    keep_one_head(config)
    assert run("forget", config, "").exit_code == 1
    assert len(listed(config)) == 1


def test_forgetting_what_is_not_kept_fails_and_says_where_to_look(config: Path) -> None:
    result = run("forget", config, "0" * 32)
    assert result.exit_code == 1
    assert "litellm-exllamav3 prefixes" in result.stderr


def test_a_config_that_cannot_be_used_names_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("max_seq_len", "max_seq_lenn"))
    result = run("prefixes", path)
    assert result.exit_code == 1
    assert "max_seq_len" in result.stderr
