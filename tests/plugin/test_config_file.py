from __future__ import annotations

import contextlib
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from litellm_exllamav3.config_file import load_settings, read_config
from litellm_exllamav3.faults import SettingsError

Content = dict[str, Any]


def sound(**models: Any) -> Content:
    """A config with nothing to be said against it."""
    models = models or {"m": served()}
    return {
        "model_list": [{"model_name": key, "litellm_params": {"model": f"exllamav3/{key}"}} for key in models],
        "litellm_settings": {
            "custom_provider_map": [{"provider": "exllamav3", "custom_handler": "litellm_exllamav3.provider.handler"}],
            "callbacks": ["litellm_exllamav3.hooks.capture"],
        },
        "general_settings": {"cancel_on_disconnect": True},
        "exllamav3_settings": {"models": models},
    }


def served(**options: Any) -> Content:
    return {"engine": "cpu", "model": {"model_dir": "demo"}, **options}


def write(folder: Path, content: Content | str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def faults(path: Path, environ: dict[str, str] | None = None) -> dict[str, str]:
    """Dotted path -> message of everything that is wrong."""
    with pytest.raises(SettingsError) as refused:
        load_settings(path, environ or {})
    found = {}
    for fault in refused.value.faults:
        steps = [step for step in fault.path if step != "exllamav3_settings"]
        found[".".join(str(step) for step in steps)] = fault.message
        assert str(fault) in str(refused.value)
    assert len(found) == len(refused.value.faults), "one fault each"
    return found


def warned(path: Path) -> dict[str, str]:
    return {".".join(map(str, warning.path)): warning.message for warning in read_config(path, {}).warnings}


def test_a_sound_config_is_read_without_warnings(tmp_path: Path) -> None:
    path = write(tmp_path, sound())
    assert warned(path) == {}
    settings = load_settings(path, {})
    assert settings.state_dir == str(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_every_fault_is_in_one_error(tmp_path: Path) -> None:
    content = sound(
        a=served(load="never", memory={"sysmem_kv_cache": -1, "pin_max_fraction": 2}),
        b=served(engine="gpu", capture={"nonces": ["("]}),
    )
    content["exllamav3_settings"]["state_dir"] = ""
    assert set(faults(write(tmp_path, content))) == {
        "state_dir",
        "models.a.load",
        "models.a.memory.sysmem_kv_cache",
        "models.a.memory.pin_max_fraction",
        "models.b.engine",
        "models.b.capture.nonces",
    }


def test_a_fault_names_its_line(tmp_path: Path) -> None:
    text = yaml.safe_dump(sound(), sort_keys=False).replace("engine: cpu", "engine: cpu\n      loaf: lazy")
    line = 1 + text.splitlines().index("      loaf: lazy")
    with pytest.raises(SettingsError, match=rf"line {line}: exllamav3_settings\.models\.m\.loaf: unknown option"):
        load_settings(write(tmp_path, text), {})


@pytest.mark.parametrize(
    ("model", "path", "remedy"),
    [
        (served(max_queues=1), "models.m.max_queues", "the nearest valid one is max_queue"),
        (served(memory={"warm_prefix": []}), "models.m.memory.warm_prefix", "the nearest valid one is warm_prefixes"),
        (served(capture={"aging_lfu": True}), "models.m.capture.aging_lfu", "it belongs in the section memory"),
        (served(cache_size=1024), "models.m.cache_size", "it belongs in the section model"),
        (
            served(memory={"warm_prompts": [{"message": [], "tools": []}]}),
            "models.m.memory.warm_prompts.0.message",
            "the nearest valid one is messages",
        ),
        (
            served(model={"model_dir": "demo", "prompt_template": "chatml"}),
            "models.m.model.prompt_template",
            "use chat_template",
        ),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_valid_one(
    tmp_path: Path, model: Content, path: str, remedy: str
) -> None:
    assert remedy in faults(write(tmp_path, sound(m=model)))[path]


@pytest.mark.parametrize(
    ("section", "option", "value", "remedy"),
    [
        ("model", "max_history", 8, "remove it or set it to 0"),
        ("model", "vision", True, "remove it or set it to false"),
        ("model", "cache_mode", "8,8", "remove it or set it to FP16"),
        ("model", "gpu_split", [10, 10], "remove it"),
        ("model", "tensor_parallel_limits", {"attn": 2}, "remove it"),
        ("draft_model", "draft_mode", "mtp", "remove it or set it to disabled or ngram or model"),
    ],
)
def test_an_option_of_another_engine_fails_the_load(
    tmp_path: Path, section: str, option: str, value: Any, remedy: str
) -> None:
    model = served()
    model[section] = {**model.get(section, {}), option: value}
    found = faults(write(tmp_path, sound(m=model)))
    assert found[f"models.m.{section}.{option}"] == f"not available on engine cpu; {remedy}"


def test_an_option_of_another_engine_may_have_its_default(tmp_path: Path) -> None:
    model = served(draft_model={"draft_cache_mode": "FP16"})
    model["model"] |= {"cache_mode": "fp16", "gpu_split": [], "vision": "os.environ/VISION"}
    load_settings(write(tmp_path, sound(m=model)), {"VISION": "False"})


HYBRID_OPTIONS = {
    "model": {
        "recurrent_frontier_checkpoints": True,
        "recurrent_eviction": "gds",
        "prefill_cost_coefficients": [1, 0.02],
    },
    "memory": {"sysmem_recurrent_cache": 64, "sysmem_kv_cache": 64},
}


def test_every_option_of_hybrid_models_reaches_the_engine(tmp_path: Path) -> None:
    model = served(memory=HYBRID_OPTIONS["memory"])
    model["model"] |= HYBRID_OPTIONS["model"]
    told = load_settings(write(tmp_path, sound(m=model)), {}).engine_settings("m")
    assert told.model.recurrent_frontier_checkpoints
    assert told.model.recurrent_eviction == "gds"
    assert told.model.prefill_cost_coefficients == (1.0, 0.02)
    assert told.memory.sysmem_recurrent_cache == 64


def test_the_fake_has_no_recurrent_state_to_keep(tmp_path: Path) -> None:
    model = served(engine="fake", memory={"sysmem_recurrent_cache": 64})
    model["model"] |= HYBRID_OPTIONS["model"]
    found = faults(write(tmp_path, sound(m=model)))
    assert set(found) == {
        "models.m.model.recurrent_frontier_checkpoints",
        "models.m.model.recurrent_eviction",
        "models.m.model.prefill_cost_coefficients",
        "models.m.memory.sysmem_recurrent_cache",
    }


@pytest.mark.parametrize("engine", ["cpu", "fake"])
def test_every_option_of_the_aging_policy_is_there(tmp_path: Path, engine: str) -> None:
    memory = {
        "aging_lfu": True,
        "aging_half_life_hours": 0.5,
        "aging_share": 0.04,
        "aging_hit_cap_pages": 8,
        "aging_weight_cap": 3,
        "aging_persist_dir": "credits",
        "aging_capture_prefixes": True,
        "aging_prefix_min_tokens": 256,
        "aging_prefix_max_tokens": 1024,
        "aging_prefix_max_entries": 7,
    }
    told = load_settings(write(tmp_path, sound(m=served(engine=engine, memory=memory))), {}).engine_settings("m")
    memory["aging_persist_dir"] = str(tmp_path / "credits")
    assert {name: getattr(told.memory, name) for name in memory} == memory


def test_the_engine_for_gpus_has_every_option(tmp_path: Path) -> None:
    model = served(engine="cuda", draft_model={"draft_mode": "mtp", "dynamic_draft": True, "draft_cache_mode": "8,8"})
    model["model"] |= {
        "cache_mode": "6,5",
        "gpu_split": [20, 24],
        "tensor_parallel": True,
        "tensor_parallel_backend": "nccl",
        "tensor_parallel_moe_split": True,
        "tensor_parallel_limits": {"attn": 2},
        "vision": True,
        "max_history": 8,
        "recurrent_state_fp32": True,
    }
    told = load_settings(write(tmp_path, sound(m=model)), {}).engine_settings("m")
    assert told.model.gpu_split == (20.0, 24.0)
    assert told.model.tensor_parallel_limits == {"attn": 2}
    assert told.model.recurrent_state_fp32
    assert told.draft.draft_mode == "mtp"


def test_drafts_from_repeated_text_are_there_on_a_cpu(tmp_path: Path) -> None:
    model = served(draft_model={"draft_mode": "ngram", "ngram_match_min": 3, "hybrid_draft_tokens": 8})
    told = load_settings(write(tmp_path, sound(m=model)), {}).engine_settings("m")
    assert (told.draft.draft_mode, told.draft.ngram_match_min, told.draft.hybrid_draft_tokens) == ("ngram", 3, 8)


def test_an_option_with_nothing_behind_it_is_left_out(tmp_path: Path) -> None:
    model = served(memory=None, max_queue=None)
    model["model"]["gpu_split"] = None
    settings = load_settings(write(tmp_path, sound(m=model)), {})
    assert settings.models["m"].max_queue == 64


def test_a_message_may_have_nothing_in_it(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": []}
    settings = load_settings(write(tmp_path, sound(m=served(memory={"warm_prompts": [{"messages": [message]}]}))), {})
    assert settings.models["m"].memory.warm_prompts[0].messages == (message,)


def test_a_missing_folder_or_template_is_named(tmp_path: Path) -> None:
    model = served(model={"model_dir": "weights", "chat_template": "chat.jinja"})
    path = write(tmp_path, sound(m=model))
    assert faults(path) == {
        "models.m.model.model_dir": f"there is no folder {tmp_path / 'weights'}",
        "models.m.model.chat_template": f"there is no file {tmp_path / 'chat.jinja'}",
    }
    (tmp_path / "weights").mkdir()
    (tmp_path / "chat.jinja").touch()
    assert load_settings(path, {}).models["m"].model.model_dir == str(tmp_path / "weights")


@pytest.mark.parametrize("path", ["", "a\0b", "~nobody-of-this-name/x", "x" * 5000])
@pytest.mark.parametrize("option", ["model_dir", "chat_template"])
def test_what_can_be_no_path_is_a_fault(tmp_path: Path, option: str, path: str) -> None:
    model = served(model={"model_dir": "demo", option: path})
    assert set(faults(write(tmp_path, sound(m=model)))) == {f"models.m.model.{option}"}


# The environment.


def test_a_file_in_the_way_of_a_folder_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    content = sound(m=served(memory={"sysmem_kv_cache": 1, "disk_cache_dir": "file"}))
    content["exllamav3_settings"]["state_dir"] = "file/state"
    found = faults(write(tmp_path, content))
    assert found.keys() == {"state_dir", "models.m.memory.disk_cache_dir"}
    assert set(found.values()) == {f"cannot be a folder, since {tmp_path / 'file'} is a file"}


def test_a_timeout_below_a_millisecond_is_a_fault(tmp_path: Path) -> None:
    found = faults(write(tmp_path, sound(m=served(request_timeout_seconds=0.0009))))
    assert "greater than or equal to 0.001" in found["models.m.request_timeout_seconds"]


def test_a_folder_that_is_there_or_can_be_made_is_none(tmp_path: Path) -> None:
    content = sound(m=served(memory={"sysmem_kv_cache": 1, "disk_cache_dir": "."}))
    content["exllamav3_settings"]["state_dir"] = "new/state"
    assert warned(write(tmp_path, content)) == {}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("memory", "place"),
    [
        ({"warm_prefixes": ["fine", "half \ud800"]}, "warm_prefixes.1"),
        (
            {"warm_prompts": [{"messages": [{"role": "system", "content": "\udfff"}]}]},
            "warm_prompts.0.messages.0.content",
        ),
        (
            {"warm_prompts": [{"messages": [{"role": "system", "content": "", "\udc80": 1}]}]},
            "warm_prompts.0.messages.0",
        ),
    ],
)
def test_half_a_character_is_a_fault(tmp_path: Path, memory: Content, place: str) -> None:
    found = faults(write(tmp_path, sound(m=served(memory=memory))))
    assert list(found) == [f"models.m.memory.{place}"]
    assert "half of a surrogate pair" in found[f"models.m.memory.{place}"]


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    model = served(max_queue="os.environ/QUEUE", replay="os.environ/REPLAY", capture={"nonces": ["os.environ/RULE"]})
    config = read_config(write(tmp_path, sound(m=model)), {"QUEUE": "3", "REPLAY": "false", "RULE": "request-id: .*"})
    settings = config.settings.models["m"]
    assert (settings.max_queue, settings.replay) == (3, False)
    assert settings.capture.nonces == ("request-id: .*",)
    assert config.variables["exllamav3_settings", "models", "m", "max_queue"] == "QUEUE"


def test_a_missing_variable_is_named_once(tmp_path: Path) -> None:
    model = served(max_queue="os.environ/QUEUE", model={"model_dir": "os.environ/DIR"})
    assert faults(write(tmp_path, sound(m=model))) == {
        "models.m.max_queue": "environment variable QUEUE is not set",
        "models.m.model.model_dir": "environment variable DIR is not set",
    }


def test_a_variable_that_another_section_lacks_is_not_our_business(tmp_path: Path) -> None:
    content = sound()
    content["general_settings"]["master_key"] = "os.environ/LITELLM_MASTER_KEY"
    load_settings(write(tmp_path, content), {})


def test_variables_that_the_config_sets_itself_are_known(tmp_path: Path) -> None:
    content = sound(m=served(max_queue="os.environ/QUEUE"))
    content["environment_variables"] = {"QUEUE": 5}
    assert load_settings(write(tmp_path, content), {}).models["m"].max_queue == 5


def test_a_value_from_the_environment_is_never_shown(tmp_path: Path) -> None:
    model = served(
        load="os.environ/SECRET_A",
        max_queue="os.environ/SECRET_B",
        model={"model_dir": "os.environ/SECRET_C"},
        capture={"nonces": ["os.environ/SECRET_D"]},
    )
    environ = {"SECRET_A": "sekrit-a", "SECRET_B": "sekrit-b", "SECRET_C": "/sekrit-c", "SECRET_D": "(sekrit-d"}
    with pytest.raises(SettingsError) as refused:
        load_settings(write(tmp_path, sound(m=model)), environ)
    assert len(refused.value.faults) == 4
    assert "sekrit" not in str(refused.value)


def test_a_prompt_is_never_shown(tmp_path: Path) -> None:
    path = write(tmp_path, sound(m=served(memory={"warm_prefixes": "sekrit", "warm_prompts": ["sekrit"]})))
    with pytest.raises(SettingsError) as refused:
        load_settings(path, {})
    assert len(refused.value.faults) == 2
    assert "sekrit" not in str(refused.value)


# The file.


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in faults(tmp_path / "nothing.yaml")[""]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "cannot be read" in faults(tmp_path)[""]


def test_broken_yaml_names_line_and_column_and_quotes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "model_list: []\napi_key: [sekrit\nother: 1\n")
    with pytest.raises(SettingsError, match=r"line 3: config.yaml is not YAML, column \d+: ") as refused:
        load_settings(path, {})
    assert "sekrit" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "- a\n", "text", "\x00"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert len(faults(write(tmp_path, text))) == 1


@pytest.mark.parametrize("section", [None, [], "text"])
def test_a_section_that_is_missing_or_no_mapping(tmp_path: Path, section: Any) -> None:
    content = sound()
    content["exllamav3_settings"] = section
    assert "it needs models" in faults(write(tmp_path, content))[""]


def test_models_that_are_no_mapping(tmp_path: Path) -> None:
    content = sound()
    content["exllamav3_settings"]["models"] = ["m"]
    assert "should be a mapping" in faults(write(tmp_path, content))["models"]


def test_a_key_that_stands_twice_is_a_fault(tmp_path: Path) -> None:
    content = sound()
    del content["exllamav3_settings"]
    text = yaml.safe_dump(content) + (
        "exllamav3_settings:\n  models:\n"
        "    m: {engine: cpu, model: {model_dir: demo}}\n"
        "    m: {engine: cpu, model: {model_dir: demo}}\n"
    )
    assert faults(write(tmp_path, text)) == {"models.m": "stands here a second time; remove one of them"}


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    content = sound(m=served(), n=served())
    del content["exllamav3_settings"]
    text = yaml.safe_dump(content) + (
        "exllamav3_settings:\n  models:\n"
        "    m: &base {engine: cpu, max_queue: 7, model: {model_dir: demo}}\n"
        "    n: {<<: *base, load: lazy}\n"
    )
    settings = load_settings(write(tmp_path, text), {})
    assert settings.models["n"].max_queue == 7
    assert settings.models["n"].load == "lazy"


def test_a_merged_key_may_be_overridden(tmp_path: Path) -> None:
    content = sound()
    del content["exllamav3_settings"]
    text = yaml.safe_dump({"common": served(engine="fake", max_queue=7), **content}).replace("common:", "common: &c")
    text += "exllamav3_settings: {models: {m: {<<: *c, engine: cpu}}}\n"
    model = load_settings(write(tmp_path, text), {}).models["m"]
    assert (model.engine, model.max_queue) == ("cpu", 7)


def test_a_fault_in_an_anchored_section_names_the_line_it_stands_in(tmp_path: Path) -> None:
    text = "memory: &m\n  aging_lfu: 7x\n" + appended(tmp_path, "").read_text()
    text = text.replace("model_dir: demo", "model_dir: demo\n      memory: *m")
    with pytest.raises(SettingsError, match=r"line 2: exllamav3_settings\.models\.m\.memory\.aging_lfu"):
        load_settings(write(tmp_path, text), {})


# YAML that a reader could fail on.


def appended(tmp_path: Path, text: str) -> Path:
    """A sound config followed by the text."""
    return write(tmp_path, yaml.safe_dump(sound(), sort_keys=False) + text)


def laughs(last: str) -> str:
    """Nine lines that stand for 10^8 values, under a key and an anchor of the last one's name."""
    names = [*(f"{last}{level}" for level in range(8)), last]
    return f"{names[0]}: &{names[0]} [x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{inner}'] * 10)}]\n" for inner, name in pairwise(names)
    )


@pytest.mark.parametrize(
    "text",
    [
        "x: &x [*x]\n",
        "x: &x {y: {z: *x}}\n",
        "environment_variables: &x {y: *x, z: [1]}\n",
        laughs("x"),
        laughs("x") + "environment_variables: {y: *x}\n",
        f"x: {'[' * 200}{']' * 200}\n",
    ],
)
def test_what_other_sections_do_with_aliases_is_not_our_business(tmp_path: Path, text: str) -> None:
    assert warned(appended(tmp_path, text)) == {}


@pytest.mark.parametrize(
    ("section", "place", "message"),
    [
        ("&x {models: *x}", "models", "is an alias of what it stands in"),
        ("{models: {m: &x {engine: cpu, memory: {warm_prompts: [*x]}}}}", "models.m.memory.warm_prompts.0", "alias"),
        ("{models: {m: {engine: cpu, memory: {warm_prefixes: *y}}}}", "", "aliases that repeat more than 100000"),
        (f"{{models: {'[' * 90}{']' * 90}}}", "models.0.0", "more than 64 levels"),
    ],
)
def test_a_section_that_cannot_be_walked_is_one_fault(tmp_path: Path, section: str, place: str, message: str) -> None:
    content = sound()
    del content["exllamav3_settings"]
    path = write(tmp_path, laughs("y") + yaml.safe_dump(content) + f"exllamav3_settings: {section}\n")
    found = faults(path)
    assert list(found) == [place]
    assert message in found[place]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: 2024-13-45\n", "column 4: not a valid timestamp"),
        ("x: !!timestamp soon\n", "column 4: not a valid timestamp"),
        (f"x: {'9' * 5000}\n", "column 4: not a valid int"),
        (f"x: 0x{'f' * 5000}\n", "column 4: not a valid int"),
        ('x: !!int ""\n', "column 4: not a valid int"),
        ("x: !!bool perhaps\n", "column 4: not a valid bool"),
        ('x: "\\UFFFFFFFF"\n', "cannot be read"),
        (f"x: {'[' * 5000}{']' * 5000}\n", "nested too deep"),
    ],
)
def test_yaml_that_has_no_value_is_one_fault(tmp_path: Path, text: str, message: str) -> None:
    found = faults(appended(tmp_path, text))
    assert list(found) == [""]
    assert message in found[""]
    assert "perhaps" not in found[""]


@pytest.mark.parametrize("entry", ["a\\0b", "a" * 5000, "a/" * 5000, "\\ud800"])
def test_an_include_that_can_be_no_path_is_a_fault(tmp_path: Path, entry: str) -> None:
    found = faults(appended(tmp_path, f'include: ["{entry}"]\n'))
    assert "can be no path" in found["include"]


def test_links_in_a_circle_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    assert "a.yaml" in faults(tmp_path / "a.yaml")[""]
    assert "can be no path" in faults(appended(tmp_path, "include: [a.yaml]\n"))["include"]


# Included files.


def test_an_included_file_may_hold_the_section(tmp_path: Path) -> None:
    content = sound()
    section = content.pop("exllamav3_settings")
    (tmp_path / "models").mkdir()
    write(tmp_path / "models", {"exllamav3_settings": section}, "ours.yaml")
    content["include"] = ["models/ours.yaml"]
    settings = load_settings(write(tmp_path, content), {})
    assert settings.state_dir == str(tmp_path / "models" / "state"), "paths start from the file they stand in"


def test_lists_of_included_files_are_joined(tmp_path: Path) -> None:
    content = sound(m=served(), n=served())
    second = content["model_list"].pop()
    write(tmp_path, {"model_list": [second]}, "more.yaml")
    content["include"] = ["more.yaml", "more.yaml"]
    assert warned(write(tmp_path, content)) == {}


def test_the_included_section_wins_whole(tmp_path: Path) -> None:
    write(tmp_path, {"exllamav3_settings": {"models": {"m": served(max_queue=9)}}}, "ours.yaml")
    content = sound(m=served(replay=False))
    content["include"] = ["ours.yaml"]
    model = load_settings(write(tmp_path, content), {}).models["m"]
    assert (model.max_queue, model.replay) == (9, True)


def test_a_missing_included_file_is_a_fault(tmp_path: Path) -> None:
    content = sound()
    content["include"] = ["nowhere.yaml"]
    assert "nowhere.yaml" in faults(write(tmp_path, content))[""]


# LiteLLM's own sections.


def test_an_alias_to_no_model_is_a_fault(tmp_path: Path) -> None:
    content = sound()
    content["model_list"].append({"model_name": "x", "litellm_params": {"model": "exllamav3/n"}})
    found = faults(write(tmp_path, content))
    assert found == {
        "model_list.1.litellm_params.model": "there is no 'n' in exllamav3_settings.models; did you mean exllamav3/m?"
    }


def test_other_providers_are_left_alone(tmp_path: Path) -> None:
    content = sound()
    content["model_list"] += [{"model_name": "x", "litellm_params": {"model": "openai/x"}}, {"model_name": "y"}, "z"]
    assert warned(write(tmp_path, content)) == {}


def test_a_wildcard_leads_to_every_model(tmp_path: Path) -> None:
    content = sound(m=served(), n=served())
    content["model_list"] = [{"model_name": "exl3/*", "litellm_params": {"model": "exllamav3/*"}}]
    assert warned(write(tmp_path, content)) == {}


@pytest.mark.parametrize("provider_map", [None, [], [{"provider": "exllamav3", "custom_handler": "provider.handler"}]])
def test_a_handler_that_is_missing_or_not_ours_is_a_fault(tmp_path: Path, provider_map: Any) -> None:
    content = sound()
    content["litellm_settings"]["custom_provider_map"] = provider_map
    message = faults(write(tmp_path, content))["litellm_settings.custom_provider_map"]
    assert "litellm_exllamav3.provider.handler" in message


def test_a_file_for_a_library_needs_none_of_litellms_sections(tmp_path: Path) -> None:
    load_settings(write(tmp_path, {"exllamav3_settings": {"models": {"m": served()}}}), {})


def test_what_litellms_sections_lack_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = sound()
    content["model_list"] = []
    content["litellm_settings"]["callbacks"] = "prometheus"
    del content["general_settings"]
    path = write(tmp_path, content)
    assert set(warned(path)) == {
        "exllamav3_settings.models.m",
        "litellm_settings.callbacks",
        "general_settings.cancel_on_disconnect",
    }
    with caplog.at_level(logging.WARNING, logger="litellm_exllamav3"):
        load_settings(path, {})
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("router", "warnings"),
    [
        ({"fallbacks": [{"local": ["mock"]}]}, {"router_settings.fallback_on_unsupported_params"}),
        ({"fallbacks": [{"local": ["mock"]}], "fallback_on_unsupported_params": False}, set()),
        ({"num_retries": 0}, set()),
    ],
)
def test_fallbacks_that_take_refused_requests_elsewhere_are_warned_about(
    tmp_path: Path, router: dict[str, Any], warnings: set[str]
) -> None:
    content = {**sound(), "router_settings": router}
    assert set(warned(write(tmp_path, content))) == warnings


def test_engine_options_that_a_client_could_override_are_warned_about(tmp_path: Path) -> None:
    content = sound()
    content["model_list"][0]["litellm_params"] |= {"cache_size": 1024, "timeout": 60}
    assert set(warned(write(tmp_path, content))) == {"model_list.0.litellm_params.cache_size"}


# Whatever is in the file.

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["os.environ/A", "os.environ/", "os.environ/B", "demo", "cpu", "exllamav3/"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a value."""
    children = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    deeper = [place for key, child in children for place in places(child, (*path, key))]
    return [(*path, key) for key, _ in children] + deeper


@hypothesis_settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_any_place_is_either_valid_or_a_settings_error(tmp_path: Path, data: st.DataObject) -> None:
    content = sound(m=served(memory={"warm_prompts": [{"messages": [{"role": "system", "content": "x"}]}]}))
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from(places(content)))
        parent: Any = content
        for step in above:
            parent = parent[step]
        parent[last if data.draw(st.booleans()) or isinstance(parent, list) else "other"] = data.draw(VALUES)
    with contextlib.suppress(SettingsError):
        load_settings(write(tmp_path, content), {"A": "1"})
