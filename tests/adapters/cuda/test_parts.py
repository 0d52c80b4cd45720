"""What a load finds out by itself, and what it says of the settings that it carried out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from recording_double import RecordingDouble

from exllamav3_adapters.cuda.effective_options import effective_options
from exllamav3_adapters.cuda.loading import load_parts
from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, LoraOptions, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.engine import LoadedModel


def load(folder: Path, num_gpus: int = 1, **model: Any) -> LoadedModel:
    settings = EngineSettings(model_key="m", model=ModelOptions(model_dir=str(folder), chunk_size=512, **model))
    return load_parts(settings, lambda progress: None, num_gpus)


def changed(folder: Path, target: Path, **config: Any) -> Path:
    """A copy of the model's folder with another config; what is None is left out of it."""
    shutil.copytree(folder, target)
    merged = json.loads((folder / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps({name: v for name, v in merged.items() if v is not None}))
    return target


@pytest.mark.usefixtures("double")
def test_a_context_is_as_long_as_the_models_positions_are_stretched(folders: Path, tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    stretched = changed(folders / "main", tmp_path / "yarn", rope_scaling=scaling)
    assert load(stretched).context_length == 16384


@pytest.mark.usefixtures("double")
def test_a_model_that_names_no_context_length_needs_one(folders: Path, tmp_path: Path) -> None:
    unknown = changed(folders / "main", tmp_path / "unknown", max_position_embeddings=None)
    with pytest.raises(LoadFailed, match=r"model.max_seq_len: .* names no context length, so it must be set"):
        load(unknown)
    assert load(unknown, max_seq_len=512).context_length == 512


def test_a_folder_without_a_tokenizer_is_refused_before_any_weight_is_read(
    double: RecordingDouble, folders: Path, tmp_path: Path
) -> None:
    bare = changed(folders / "main", tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(LoadFailed, match=r"the tokenizer files in .*/bare cannot be used"):
        load(bare)
    assert "Model.load_gen" not in [name for name, _ in double.calls]


@pytest.mark.usefixtures("double")
def test_the_parts_say_what_the_load_carried_out(folders: Path) -> None:
    one, two = [
        load(folders / "main", gpus, cache_mode="8,8", gpu_split=(20.0, 24.0)).effective_settings for gpus in (1, 2)
    ]
    assert one == {"model.cache_mode": "8,8 (exllamav3)"}
    assert two == {"model.cache_mode": "8,8 (exllamav3)", "model.gpu_split": "[20.0, 24.0] (exllamav3)"}


def test_a_draft_model_and_adapters_are_among_what_was_carried_out() -> None:
    settings = EngineSettings(
        model_key="m",
        model=ModelOptions(model_dir="/m"),
        draft=DraftOptions(draft_mode="model", draft_model_dir="/d"),
        loras=(LoraOptions(folder="/l/a"), LoraOptions(folder="/l/b", scaling=0.5)),
    )
    assert effective_options(settings, ()) == {
        "draft_model.draft_mode": "model (exllamav3)",
        "draft_model.draft_model_dir": "/d (exllamav3)",
        "lora.loras": "/l/a x 1, /l/b x 0.5 (exllamav3)",
    }
