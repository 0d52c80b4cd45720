from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from exllamav3_adapters.engine_settings import (
    DraftOptions,
    EngineSettings,
    ImageOptions,
    LoraOptions,
    MemoryOptions,
    ModelOptions,
)
from litellm_exllamav3.availability import OPTIONS
from litellm_exllamav3.images_section import ImagesSection
from litellm_exllamav3.memory_section import MemorySection
from litellm_exllamav3.model_section import DraftModelSection, LoraSection, ModelSection
from litellm_exllamav3.settings import ModelSettings, Settings


def model(engine: str = "cpu", **sections: Any) -> ModelSettings:
    sections["model"] = {"model_dir": "demo", **sections.get("model", {})}
    return ModelSettings.model_validate({"engine": engine, **sections})


def fault(section: str, **options: Any) -> str:
    """The one message that these options of a section are refused with."""
    with pytest.raises(ValidationError) as refused:
        model(**{section: options})
    (error,) = refused.value.errors()
    assert error["loc"][0] == section
    return str(error["msg"])


def test_little_needs_to_be_said() -> None:
    settings = model()
    assert settings.load == "startup"
    assert settings.replay is True
    assert settings.max_queue == 64
    assert settings.request_timeout_seconds == 600
    assert settings.capture.enabled is True


def test_an_engine_is_told_everything_with_its_defaults_worked_out(tmp_path: Path) -> None:
    settings = model(model={"max_seq_len": 1000}, memory={"sysmem_kv_cache": 512})
    told = settings.engine_settings("smollm2")
    assert told == EngineSettings(
        model_key="smollm2",
        model=ModelOptions(model_dir="demo", max_seq_len=1000, cache_size=1024, chunk_size=512),
        memory=MemoryOptions(sysmem_kv_cache=512),
    )


def test_the_chunk_is_smaller_on_a_cpu() -> None:
    assert model("cpu").engine_settings("m").model.chunk_size == 512
    assert model("fake").engine_settings("m").model.chunk_size == 2048


def test_the_default_chunk_never_exceeds_the_cache() -> None:
    assert model(model={"cache_size": 256}).engine_settings("m").model.chunk_size == 256


def test_paths_are_relative_to_the_config_file(tmp_path: Path) -> None:
    raw = {
        "models": {
            "m": {
                "engine": "cpu",
                "model": {"model_dir": "weights", "model_name": "small", "chat_template": "/t.jinja"},
                "memory": {"sysmem_kv_cache": 1, "disk_cache_dir": "../pages"},
            }
        }
    }
    settings = Settings.model_validate(raw, context={"base_dir": tmp_path})
    told = settings.models["m"].engine_settings("m")
    assert settings.state_dir == str(tmp_path / "state")
    assert told.model.model_dir == str(tmp_path / "weights" / "small")
    assert told.model.chat_template == "/t.jinja"
    assert told.memory.disk_cache_dir == str(tmp_path.parent / "pages")


@pytest.mark.parametrize(("written", "meant"), [("8,8", "8,8"), ("6, 5", "6,5"), ("Q4", "4,4"), ("fp16", "FP16")])
def test_cache_modes_are_written_as_tabbyapi_writes_them(written: str, meant: str) -> None:
    assert ModelSection(model_dir="demo", cache_mode=written).cache_mode == meant


def test_a_length_of_minus_one_is_the_models_own() -> None:
    assert ModelSection(model_dir="demo", max_seq_len=-1).max_seq_len is None


@pytest.mark.parametrize(
    ("section", "options", "message"),
    [
        ("model", {"cache_size": 1000}, "multiple of 256 (a page), such as 768 or 1024"),
        ("model", {"chunk_size": 100}, "greater than or equal to 256"),
        ("model", {"max_seq_len": 0}, "positive number of tokens"),
        ("model", {"max_seq_len": 4000, "cache_size": 2048}, "make it 4096 or more"),
        ("model", {"cache_size": 1024, "chunk_size": 2048}, "make it 1024 or less"),
        ("model", {"max_seq_len": 900, "chunk_size": 2048}, "make it 1024 or less"),
        ("model", {"chunk_size": 512, "shared_chunk_size": 1024}, "make it 512 or less"),
        ("model", {"cache_mode": "9,9"}, "FP16"),
        ("model", {"max_batch_size": True}, "should be a number"),
        ("model", {"moe_cpu_offload": 1, "moe_cpu_split": 1}, "cannot be combined with moe_cpu_offload"),
        ("model", {"tensor_parallel": True, "moe_cpu_split": 1}, "cannot be combined with tensor_parallel"),
        ("model", {"gpu_split": [0, 0]}, "no GPU any memory"),
        ("model", {"prefill_cost_coefficients": [0, 1]}, "greater than 0"),
        ("model", {"recurrent_eviction": "random"}, "'lru' or 'gds'"),
        ("memory", {"sysmem_kv_cache": -1}, "greater than or equal to 0"),
        ("memory", {"disk_cache_dir": "pages"}, "needs sysmem_kv_cache"),
        ("memory", {"disk_cache_size": 1}, "no effect without disk_cache_dir"),
        ("memory", {"pin_max_fraction": 1.1}, "less than or equal to 1"),
        ("memory", {"warm_prefixes": [""]}, "entry 0 is empty"),
        ("memory", {"warm_prefix_token_ids": [[1], [-1]]}, "entry 1 has a token id that is not from 0"),
        ("memory", {"warm_prefix_token_ids": [[2**31 - 1, 2**31]]}, "from 0 to 2147483647"),
        ("memory", {"warm_prompts": [{}]}, "give it messages, tools or both"),
        ("memory", {"warm_prompts": [{"messages": [{"content": "hi"}]}]}, "message 0 has no role"),
        ("memory", {"warm_prompts": [{"messages": [{"role": "system"}]}]}, "message 0 has no content"),
        ("memory", {"warm_prompts": [{"tools": [{"name": "f"}]}]}, "tool 0 is not of the form"),
        ("memory", {"aging_half_life_hours": 0.1}, "aging_half_life_hours: no effect without aging_lfu"),
        ("memory", {"aging_capture_prefixes": True}, "aging_capture_prefixes: no effect without aging_lfu"),
        ("memory", {"aging_lfu": True, "aging_half_life_hours": 1e-320}, "greater than or equal to 0.000001"),
        ("memory", {"aging_lfu": True, "aging_half_life_hours": 1e308}, "less than or equal to 1000000"),
        ("memory", {"aging_lfu": True, "aging_prefix_max_tokens": 8}, "smaller than aging_prefix_min_tokens"),
        ("memory", {"aging_lfu": True, "aging_prefix_min_tokens": 40000}, "smaller than aging_prefix_min_tokens"),
        (
            "memory",
            {"aging_lfu": True, "aging_prefix_min_tokens": 600, "aging_prefix_max_tokens": 700},
            "leaves no prefix to record: 512 tokens",
        ),
        ("memory", {"recurrent_checkpoint_interval": 300}, "multiple of 256"),
        ("draft_model", {"draft_mode": "model"}, "needs draft_model_dir"),
        ("lora", {"loras": [{"name": "a"}]}, "need lora_dir"),
        ("capture", {"min_conversations": 0}, "greater than or equal to 1"),
        ("capture", {"half_life_hours": float("inf")}, "finite"),
        ("capture", {"nonces": ["ok", "("]}, "entry 1 is not a regular expression"),
        ("capture", {"nonces": [".*"]}, "would drop whole prompts"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_to_do(section: str, options: dict[str, Any], message: str) -> None:
    assert message in fault(section, **options)


def test_a_key_that_litellm_sends_elsewhere_is_refused() -> None:
    good = {"engine": "cpu", "model": {"model_dir": "demo"}}
    for key, reason in [
        ("my-replicate", "'replicate' in its name"),
        ("clarifai7b", "'clarifai' in its name"),
        ("snowflake/llama3-8b", "slash"),
        ("petals-team/StableBeluga2", "slash"),
        ("", "letter or digit"),
        ("a b", "letters, digits"),
    ]:
        with pytest.raises(ValidationError, match=reason):
            Settings.model_validate({"models": {key: good}})
    assert "Qwen3-8B_4.0bpw" in Settings.model_validate({"models": {"Qwen3-8B_4.0bpw": good}}).models


def test_the_names_that_litellm_lists_for_other_providers_all_have_a_slash() -> None:
    """Or the rule for keys would have to name them."""
    import litellm

    listed = {
        *litellm.replicate_models,
        *litellm.clarifai_models,
        *litellm.petals_models,
        *litellm.snowflake_models,
        *litellm.ovhcloud_models,
    }
    assert listed
    assert [name for name in listed if "/" not in name] == []


def test_no_models_is_a_fault() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        Settings.model_validate({"models": {}})


def test_an_explicitly_disabled_policy_may_keep_its_options_and_warns() -> None:
    settings = model(memory={"aging_lfu": False, "aging_weight_cap": 2})
    assert [option for option, _ in settings.warnings()] == ["memory.aging_lfu"]


@pytest.mark.parametrize(
    ("sections", "option"),
    [
        ({"memory": {"aging_lfu": True, "aging_half_life_hours": 1.01}}, "memory.aging_half_life_hours"),
        ({"memory": {"aging_lfu": True, "aging_share": 0.051}}, "memory.aging_share"),
        ({"memory": {"aging_lfu": True}, "capture": {"enabled": False}}, "memory.aging_lfu"),
        ({"model": {"recurrent_frontier_checkpoints": True}}, "model.recurrent_frontier_checkpoints"),
        ({"model": {"prefill_cost_coefficients": [1, 0.02]}}, "model.prefill_cost_coefficients"),
        ({"model": {"gpu_split_auto": True, "gpu_split": [8, 8]}}, "model.gpu_split_auto"),
        ({"capture": {"max_entries": 8}}, "capture.max_entries_per_key"),
    ],
)
def test_what_is_probably_not_meant_is_warned_about(sections: dict[str, Any], option: str) -> None:
    assert [warned for warned, _ in model(**sections).warnings()] == [option]


def test_a_sensible_config_has_no_warnings() -> None:
    memory = {"aging_lfu": True, "aging_half_life_hours": 1, "aging_share": 0.05, "sysmem_kv_cache": 64}
    hybrid = {
        "recurrent_frontier_checkpoints": True,
        "recurrent_eviction": "gds",
        "prefill_cost_coefficients": [1, 0.02],
    }
    assert list(model(memory=memory, model=hybrid).warnings()) == []


def with_memory(tmp_path: Path, **memory: Any) -> MemoryOptions:
    raw = {"models": {"m": {"engine": "cpu", "model": {"model_dir": "demo"}, "memory": memory}}}
    return Settings.model_validate(raw, context={"base_dir": tmp_path}).engine_settings("m").memory


def test_credit_is_kept_under_the_state_dir_unless_a_folder_is_named(tmp_path: Path) -> None:
    assert with_memory(tmp_path, aging_lfu=True).aging_persist_dir == str(tmp_path / "state" / "credits")
    told = with_memory(tmp_path, aging_lfu=True, aging_persist_dir="elsewhere")
    assert told.aging_persist_dir == str(tmp_path / "elsewhere")


def test_without_the_policy_no_credit_is_kept_and_no_prefix_recorded(tmp_path: Path) -> None:
    assert with_memory(tmp_path).aging_persist_dir is None
    told = with_memory(tmp_path, aging_lfu=False, aging_persist_dir="x", aging_capture_prefixes=True)
    assert (told.aging_persist_dir, told.aging_capture_prefixes) == (None, False)


def test_an_engine_records_no_prefix_of_a_model_that_is_not_captured() -> None:
    memory = {"aging_lfu": True, "aging_capture_prefixes": True}
    assert model(memory=memory).engine_settings("m").memory.aging_capture_prefixes
    assert not model(memory=memory, capture={"enabled": False}).engine_settings("m").memory.aging_capture_prefixes


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        model().max_queue = 1  # type: ignore[misc]


def test_defaults_are_those_of_the_engines() -> None:
    section: type[BaseModel]
    options: ModelOptions | MemoryOptions | ImageOptions
    for section, options in [
        (ModelSection, ModelOptions(model_dir="")),
        (MemorySection, MemoryOptions()),
        (ImagesSection, ImageOptions()),
    ]:
        for option in fields(options):
            if option.name not in ("model_dir", "chunk_size"):
                assert section.model_fields[option.name].default == getattr(options, option.name), option.name


SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSection,
    "memory": MemorySection,
    "draft_model": DraftModelSection,
    "images": ImagesSection,
    "lora": LoraSection,
}
"""Of a model, those whose options are an engine's."""


def test_every_option_of_an_engine_says_where_it_is_available() -> None:
    names = {f"{prefix}.{name}" for prefix, section in SECTIONS.items() for name in section.model_fields}
    assert set(OPTIONS) == names


def test_the_value_that_is_as_good_as_none_is_the_default() -> None:
    for name, option in OPTIONS.items():
        prefix, _, field = name.partition(".")
        info = SECTIONS[prefix].model_fields[field]
        if not info.is_required():
            default = list(info.default) if isinstance(info.default, tuple) else info.default
            assert default == option.off, name


def test_an_option_reaches_an_engine_that_has_it() -> None:
    """What is available must have a place in what the engine is told, or be the plugin's own."""
    sections = {"model": ModelOptions, "memory": MemoryOptions, "draft_model": DraftOptions, "images": ImageOptions}
    told = {f"{prefix}.{f.name}" for prefix, options in sections.items() for f in fields(options)}
    plugins_own = {name for name in OPTIONS if name.startswith(("memory.warm_", "lora."))}
    names = {"model.model_name", "draft_model.draft_model_name"}
    names |= {"images.max_mebibytes", "images.max_images", "images.allowed_folders"}
    assert set(OPTIONS) <= told | plugins_own | names


@pytest.mark.parametrize(("written", "read"), [("auto", "auto"), (True, "on"), (False, "off"), ("on", "on")])
def test_reasoning_may_be_switched_as_yaml_reads_it(written: object, read: str) -> None:
    assert ModelSection.model_validate({"model_dir": "demo", "reasoning": written}).reasoning == read


def test_an_unknown_form_of_tool_calls_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ValidationError, match="no such form; use one of auto, none"):
        ModelSection.model_validate({"model_dir": "demo", "tool_format": "morse"})


def test_options_of_images_without_vision_bring_a_warning() -> None:
    images = {"max_pixels": 1000}
    seeing = model("fake", model={"vision": True}, images=images)
    blind = model("fake", images=images)
    assert list(seeing.warnings()) == []
    assert list(blind.warnings()) == [("images", "has no effect without model.vision")]
    assert seeing.engine_settings("m").images == ImageOptions(max_pixels=1000)


def test_the_engine_is_told_of_a_draft_model_and_of_adapters_by_their_folders() -> None:
    settings = model(
        "cuda",
        draft_model={"draft_model_dir": "/models", "draft_model_name": "small", "draft_mode": "model"},
        lora={"lora_dir": "/loras", "loras": [{"name": "tone", "scaling": 0.5}]},
    ).engine_settings("m")
    assert (settings.draft.draft_mode, settings.draft.draft_model_dir) == ("model", "/models/small")
    assert settings.loras == (LoraOptions(folder="/loras/tone", scaling=0.5),)
