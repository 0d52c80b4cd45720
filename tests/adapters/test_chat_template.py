"""Where a model's chat template and special tokens are found."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from exllamav3_adapters.chat_template import find_chat_template, read_special_tokens
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.template_sandbox import CompiledTemplate


def rendered(template: CompiledTemplate | None) -> str:
    assert template is not None
    return template.render([{"role": "user", "content": "x"}], now=datetime(2026, 1, 1)).text


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "chat_template.jinja").write_text("from jinja")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from config"}))
    return tmp_path


def test_the_configured_path_goes_before_the_models_own_files(model_dir: Path) -> None:
    own = model_dir / "mine.jinja"
    own.write_text("mine")
    assert rendered(find_chat_template(model_dir, str(own)).default) == "mine"


def test_the_models_files_are_looked_at_in_transformers_order(model_dir: Path) -> None:
    found = []
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        found.append(rendered(find_chat_template(model_dir).default))
        (model_dir / name).unlink()
    assert found == ["from jinja", "from json", "from config"]


def test_named_templates_give_one_for_chats_with_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = find_chat_template(tmp_path)
    assert (rendered(template.default), rendered(template.tool_use)) == ("plain", "with tools")


def test_a_tool_use_file_is_the_template_for_chats_with_tools(model_dir: Path) -> None:
    (model_dir / "additional_chat_templates").mkdir()
    (model_dir / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert rendered(find_chat_template(model_dir).tool_use) == "with tools"


def test_a_model_without_a_template_says_which_setting_gives_it_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(LoadFailed, match=r"Set model\.chat_template"):
        find_chat_template(tmp_path)


def test_a_configured_path_that_is_not_there_is_named(model_dir: Path) -> None:
    with pytest.raises(LoadFailed, match=r"absent\.jinja: No such file"):
        find_chat_template(model_dir, str(model_dir / "absent.jinja"))


def test_a_template_with_a_syntax_error_is_named_with_its_line(model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("ok\n{% if %}")
    with pytest.raises(LoadFailed, match=r"chat_template\.jinja: .* line 2"):
        find_chat_template(model_dir)


@pytest.mark.parametrize("text", ["{", "[]", '{"chat_template": 3}', '{"chat_template": []}'])
def test_a_damaged_template_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "chat_template.json").write_text(text)
    with pytest.raises(LoadFailed, match=r"chat_template\.json"):
        find_chat_template(tmp_path)


def test_special_tokens_come_as_strings_or_as_objects(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_special_tokens_map_goes_before_the_tokenizer_config(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<a>", "eos_token": "</s>"}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<b>"}))
    assert read_special_tokens(tmp_path) == {"bos_token": "<b>", "eos_token": "</s>"}


def test_a_model_without_tokenizer_files_has_no_special_tokens(tmp_path: Path) -> None:
    assert read_special_tokens(tmp_path) == {}
