"""What becomes of a load on the way: its progress, its end before the end, and its failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_double import NUM_MODULES, RecordingDouble

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cuda.module_loading import unload
from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.load_thread import LoadStopped


def settings(folders: Path, *, with_draft: bool = False, **model: Any) -> EngineSettings:
    draft = DraftOptions(draft_mode="model", draft_model_dir=str(folders / "draft"))
    return EngineSettings(
        model_key="m",
        model=ModelOptions(model_dir=str(folders / "main"), chunk_size=512, **model),
        draft=draft if with_draft else DraftOptions(),
    )


def failure(double: RecordingDouble, folders: Path, error: Exception, **model: Any) -> str:
    double.load_error = error
    with pytest.raises(LoadFailed) as failed:
        double.load(settings(folders, **model), 2)
    return failed.value.message


def unloaded(double: RecordingDouble) -> list[str]:
    return [call["self"] for name, call in double.calls if name == "Model.unload"]


def test_each_module_is_reported_draft_model_first(double: RecordingDouble, folders: Path) -> None:
    seen: list[LoadProgress] = []
    double.load(settings(folders, with_draft=True), 1, seen.append)
    modules = [(step.stage, step.done) for step in seen if step.total == NUM_MODULES]
    stages = [("loading the draft model", "loading the model")[index // (NUM_MODULES + 1)] for index in range(8)]
    assert modules == [(stage, index % (NUM_MODULES + 1)) for index, stage in enumerate(stages)]
    assert seen[0].stage == "reading the configuration"
    assert seen[-1] == LoadProgress(stage="warming up", done=1, total=1)


@pytest.mark.parametrize("stage", ["loading the draft model", "loading the model", "warming up"])
def test_a_load_that_is_stopped_frees_every_model(double: RecordingDouble, folders: Path, stage: str) -> None:
    def stop(progress: LoadProgress) -> None:
        if progress.stage == stage and progress.done:
            raise LoadStopped

    with pytest.raises(LoadStopped):
        double.load(settings(folders, with_draft=True), 1, stop)
    assert unloaded(double) == ["text", "draft"]
    assert "Generator" not in [name for name, _ in double.calls]


def test_memory_that_ran_out_is_named_with_what_was_missing_and_what_to_lower(
    double: RecordingDouble, folders: Path
) -> None:
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 23.52 GiB of which 600.00 MiB "
        "is free. Process 1 has 22.90 GiB memory in use."
    )
    assert failure(double, folders, error) == (
        "the GPUs' memory ran out at module 2 of 3 of the model: 1.25 GiB were asked for and 600.00 MiB free; lower "
        "model.cache_size or model.max_batch_size, set model.cache_mode to fewer bits, or give the load more memory "
        "with model.gpu_split or a smaller model.autosplit_reserve"
    )
    assert unloaded(double) == ["text"]


def test_a_split_that_does_not_fit_says_how_far_it_came(double: RecordingDouble, folders: Path) -> None:
    message = failure(double, folders, RuntimeError("Insufficient VRAM in split for model and cache"))
    assert message.startswith("the GPUs' memory ran out at module 2 of 3 of the model; lower model.cache_size")


def test_an_architecture_without_tensor_parallel_names_the_option(double: RecordingDouble, folders: Path) -> None:
    error = NotImplementedError("Tensor-parallel is not currently implemented for X")
    message = failure(double, folders, error, tensor_parallel=True)
    assert message == (
        "model.tensor_parallel: exllamav3 cannot load the model so: Tensor-parallel is not currently implemented for X"
    )


def test_any_other_failure_names_the_folder_and_the_module(double: RecordingDouble, folders: Path) -> None:
    message = failure(double, folders, ValueError("Required tensor model.layers.0.mlp not found\nmore"))
    assert message == (
        "model.model_dir: exllamav3 could not load the model (at module 2 of 3): Required tensor model.layers.0.mlp "
        "not found"
    )


class HalfLoaded:
    """A tensor parallel model whose load was cut short: its processes are there, and it does not know."""

    mp_children = (object(),)
    loaded_tp = False

    def __init__(self) -> None:
        self.ended: list[str] = []

    def destroy_tp_context(self) -> None:
        self.ended.append("processes")

    def unload(self) -> None:
        self.ended.append("modules")


def test_the_processes_of_a_tensor_parallel_load_that_was_cut_short_end_too() -> None:
    model = HalfLoaded()
    unload([model])
    assert model.ended == ["processes", "modules"]
