"""The estimate of a real model's shape, and what a refusal says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from exl3_folder import write_exl3_llama
from exllamav3 import Cache
from exllamav3.model.model_tp_alloc import TPAllocator
from preflight_run import GIB, MIB, findings, gpu, machine, only, settings

from exllamav3_adapters.cuda.layout import lay_out
from exllamav3_adapters.engine_settings import DraftOptions, EngineSettings, MemoryOptions
from exllamav3_adapters.preflight.estimate import Estimate, table
from exllamav3_adapters.preflight.machine import Disk, Machine
from exllamav3_adapters.preflight.run import preflight


def estimated(given: EngineSettings, on: Machine) -> Estimate:
    found = preflight(given, on).estimate
    assert found is not None
    return found


def refusal(given: EngineSettings, on: Machine) -> str:
    found = only([finding for finding in findings(given, on) if finding.severity == "error"])
    assert found.subject == "GPU memory"
    return str(found)


def test_llama_of_8b_at_4_bits_takes_what_its_numbers_say(llama: Path) -> None:
    device, memory = estimated(settings(llama), machine()).devices
    assert device.uses["cache"] == 32 * 8192 * 8 * 128 * 2 * 2
    parameters = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
    assert device.uses["weights"] == pytest.approx(parameters / 2, rel=0.01)
    assert memory.uses == {"embeddings": 128256 * 4096 * 2}


def test_tiers_and_disk_are_in_it(llama: Path) -> None:
    tiers = MemoryOptions(sysmem_kv_cache=2048, disk_cache_dir="/tiers", disk_cache_size=1024)
    _, memory, disk = estimated(settings(llama, tiers), machine(disk=Disk(free=100 * GIB))).devices
    assert memory.uses["tier of pages"] == 2 * GIB
    assert disk.uses == {"tier of pages and checkpoints": GIB}


def test_a_draft_model_is_in_it(llama: Path, tmp_path: Path) -> None:
    small = write_exl3_llama(tmp_path / "draft", num_hidden_layers=2)
    draft = DraftOptions(draft_mode="model", draft_model_dir=str(small), draft_cache_mode="8,8")
    uses = estimated(settings(llama, draft=draft), machine()).devices[0].uses
    assert 0 < uses["draft weights"] < uses["weights"]
    assert uses["draft cache"] == pytest.approx(uses["cache"] * 2 / 32 * 8.5 / 16)


def test_the_table_has_a_block_for_each_device(llama: Path) -> None:
    lines = table(estimated(settings(llama), machine(gpus=(gpu(), gpu())))).splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "cuda:0 (RTX 4090): needs 5.16 GiB, fits (22.91 GiB usable)",
        "cuda:1 (RTX 4090): needs 0 MiB, fits (22.50 GiB usable)",
        "system memory: needs 1002 MiB, fits (48.00 GiB usable)",
    ]
    assert re.search(r"^    cache +1\.00 GiB$", "\n".join(lines), re.MULTILINE)


def test_without_a_gpu_it_says_what_one_would_need(llama: Path) -> None:
    lines = table(estimated(settings(llama), machine(gpus=()))).splitlines()
    assert lines[0] == "GPU: needs 5.16 GiB, there is none here"


def test_a_refusal_says_by_how_much_and_what_to_set(llama: Path) -> None:
    given = settings(llama, cache_size=131072)
    said = refusal(given, machine(gpus=(gpu(free=10.0),)))
    assert "GiB are missing (cuda:0 (RTX 4090) would need " in said
    assert "of 10.00 GiB free" in said
    assert 'set model.cache_mode to "4,4"' in said or 'set model.cache_mode to "5,5"' in said
    smaller = re.search(r"lower model\.cache_size from 131072 to (\d+) tokens", said)
    assert smaller


def test_the_sizes_that_a_refusal_names_fit_and_the_next_larger_do_not(llama: Path) -> None:
    card = machine(gpus=(gpu(free=10.0),))
    said = refusal(settings(llama, cache_size=131072), card)
    tokens = int(re.findall(r"to (\d+) tokens", said)[0])
    mode = re.findall(r'cache_mode to "(\d,\d)"', said)[0]
    assert tokens % 256 == 0
    assert findings(settings(llama, cache_size=tokens), card) == []
    assert findings(settings(llama, cache_size=tokens + 256), card) != []
    assert findings(settings(llama, cache_size=131072, cache_mode=mode), card) == []


def test_what_only_the_estimate_of_forwards_exceeds_is_a_warning(llama: Path) -> None:
    found = only(findings(settings(llama), machine(gpus=(gpu(free=5.0),))))
    assert (found.severity, found.subject) == ("warning", "GPU memory")
    assert "as far as forwards can be estimated" in found.fault


def test_where_only_a_shorter_context_helps_it_says_so(llama: Path) -> None:
    given = settings(llama, max_seq_len=131072, cache_size=131072)
    card = machine(gpus=(gpu(free=6.0),))
    said = refusal(given, card)
    tokens = int(re.findall(r"model\.max_seq_len and model\.cache_size to (\d+)", said)[0])
    assert findings(settings(llama, max_seq_len=tokens, cache_size=tokens), card) == []


def test_where_no_setting_helps_it_says_what_would(llama: Path) -> None:
    said = refusal(settings(llama), machine(gpus=(gpu(free=3.0, total=4.0),)))
    assert "use a version of the model with fewer bits a weight, a smaller model, or more GPUs" in said
    assert "free the GPUs of other programs" in said


def test_two_gpus_hold_what_one_cannot(llama: Path) -> None:
    given = settings(llama, cache_size=32768)
    assert findings(given, machine(gpus=(gpu(free=5.0),))) != []
    assert findings(given, machine(gpus=(gpu(free=5.0), gpu(free=6.5)))) == []


def test_a_page_is_what_the_tiers_store(llama: Path) -> None:
    assert estimated(settings(llama), machine()).page_bytes == 32 * MIB


def test_tensor_parallel_shares_a_model_as_exllamav3_plans_it(llama: Path) -> None:
    cards = machine(gpus=(gpu(free=8.0), gpu(free=16.0)))
    given = settings(llama, tensor_parallel=True, autosplit_reserve=(0.0, 0.0))
    devices = estimated(given, cards).devices[:2]
    model = lay_out(given, llama).model
    Cache(model, 8192)
    parts = [part for module in model.modules[1:] for part in module.make_tp_allocation({})]
    planner = TPAllocator(parts, num_tokens=2048, output_num_tokens=32)
    _, storage, _ = planner.initial_split([card.free for card in cards.gpus])
    for device, planned in zip(devices, storage, strict=True):
        assert device.uses["weights"] + device.uses["cache"] == pytest.approx(planned, rel=0.05)
