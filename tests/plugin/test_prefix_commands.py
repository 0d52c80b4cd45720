from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from exllamav3_adapters.contract import Head, StoredPrefix
from litellm_exllamav3.capture import Capture
from litellm_exllamav3.cli import app
from litellm_exllamav3.config_file import load_settings
from litellm_exllamav3.gateway import open_capture
from litellm_exllamav3.head import request_head
from litellm_exllamav3.packed_tokens import pack_tokens

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
TOKENS = tuple(range(70_000, 70_512))
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


def keep_one_chain(config: Path, digest: str = "c" * 32) -> None:
    async def keep() -> None:
        capture = await open_capture(load_settings(config, {}))
        chain = StoredPrefix(
            digest=digest, token_ids=TOKENS, credit=2.0, written_at=time.time(), cache_fingerprint="fp"
        )
        await capture.chains.keep("m", [chain])
        await capture.close()

    asyncio.run(keep())


def left_on_disk(tmp_path: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())


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
    assert (row["model"], row["kind"], row["tokens"], row["messages"], row["tools"]) == ("m", "head", 600, 1, 0)
    assert "sekrit" not in run("prefixes", config).stdout


def test_a_forgotten_head_leaves_no_byte_behind(config: Path, tmp_path: Path) -> None:
    keep_one_head(config)
    (row,) = listed(config)
    result = run("forget", config, row["digest"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert listed(config) == []
    assert b"sekrit" not in left_on_disk(tmp_path)


def test_a_chain_is_listed_by_its_digest_and_length_among_the_heads(config: Path) -> None:
    keep_one_head(config)
    keep_one_chain(config)
    chain, head = listed(config)
    assert (head["kind"], chain["kind"]) == ("head", "chain")
    assert (chain["digest"], chain["tokens"], chain["messages"], chain["tools"]) == ("c" * 32, 512, None, None)
    assert str(TOKENS[0]) not in run("prefixes", config).stdout
    assert " cccccccccccc " in run("prefixes", config).stdout


def test_a_forgotten_chain_leaves_no_byte_behind(config: Path, tmp_path: Path) -> None:
    keep_one_chain(config)
    assert pack_tokens(TOKENS[:32]) in left_on_disk(tmp_path)
    result = run("forget", config, "cccc")
    assert (result.exit_code, result.stderr) == (0, "")
    assert listed(config) == []
    assert pack_tokens(TOKENS[:32]) not in left_on_disk(tmp_path)


def test_without_an_engine_all_chains_go_with_a_head_and_it_is_said(config: Path, tmp_path: Path) -> None:
    keep_one_head(config)
    keep_one_chain(config)
    (head,) = [row for row in listed(config) if row["kind"] == "head"]
    result = run("forget", config, head["digest"])
    assert result.exit_code == 0
    assert "no engine could say which of the chains of m hold it, so all 1 of them were removed" in result.stdout
    assert listed(config) == []
    assert pack_tokens(TOKENS[:32]) not in left_on_disk(tmp_path)


@pytest.mark.parametrize("name", ["m.credit.db", "m.credit.db.damaged"])
def test_without_an_engine_the_hashes_of_pages_go_with_the_credit(config: Path, tmp_path: Path, name: str) -> None:
    keep_one_chain(config)
    folder = tmp_path / "state" / "credits"
    folder.mkdir()
    for one in (name, "other.credit.db"):
        (folder / one).write_bytes(bytes.fromhex("c" * 32))
    assert run("forget", config, "cccc").exit_code == 0
    assert [one.name for one in folder.iterdir()] == ["other.credit.db"]


def test_a_list_applies_the_models_own_bound_on_chains(config: Path) -> None:
    config.write_text(CONFIG + "      memory: {aging_lfu: true, aging_prefix_max_entries: 100}\n")
    for number in range(70):
        keep_one_chain(config, f"{number:032}")
    assert len(listed(config)) == 70


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
