"""The random models, and on a card their conversion to EXL3 by exllamav3's own converter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from gpu_check.check import Check, Figures, ModelName, PartFailed
from gpu_check.random_model import write_random_model

BITS, HEAD_BITS = 4, 6
_CALIBRATION: Final = ["-cr", "16", "-cc", "1024"]
"""Rows and columns: more tokens than the widest layer has inputs."""
_LAST_LINES: Final = 12


def write_models(check: Check) -> Figures:
    """Both, with 16-bit weights."""
    sizes: Figures = {}
    for model in ("llama", "hybrid"):
        folder = check.source(model)
        if not (folder / "config.json").exists():
            write_random_model(folder, check.shape(model))
        sizes[f"{model}_mebibytes"] = round((folder / "model.safetensors").stat().st_size / 2**20, 1)
    return sizes


def convert_llama(check: Check) -> Figures:
    return _convert(check, "llama")


def convert_hybrid(check: Check) -> Figures:
    return _convert(check, "hybrid")


def converter_arguments(source: Path, work: Path, target: Path) -> list[str]:
    """Of `exllamav3.conversion.convert_model`: a new conversion, or what an earlier one left in `work`."""
    if (work / "ckpt" / "job.json").exists() and (work / "args.json").exists():
        return ["-w", str(work), "-r"]
    bits = ["-b", str(BITS), "-hb", str(HEAD_BITS)]
    return ["-i", str(source), "-w", str(work), "-o", str(target), *bits, *_CALIBRATION, "-cpi", "10"]


def _convert(check: Check, model: ModelName) -> Figures:
    source, target = check.source(model), check.model(model)
    work = check.state / "conversion" / model
    check.say("exllamav3's converter")
    command = [sys.executable, "-m", "exllamav3.conversion.convert_model", *converter_arguments(source, work, target)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    (check.state / f"conversion-{model}.log").write_text(done.stdout)
    # It ends with status 0 where it refuses its arguments.
    if done.returncode != 0 or not is_exl3(target):
        raise PartFailed(f"the converter ended with {done.returncode}: {_tail(done.stdout)}")
    size = sum(file.stat().st_size for file in target.glob("*.safetensors"))
    return {"bits": BITS, "head_bits": HEAD_BITS, "mebibytes": round(size / 2**20, 1)}


def is_exl3(folder: Path) -> bool:
    """Whether the converter got to the end: the config is the last that it writes of the model."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(config.get("quantization_config", {}).get("quant_method") == "exl3")


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-_LAST_LINES:])
