"""What the tests of answer formats share."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def o200k_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `o200k_base.tiktoken`, which LiteLLM carries under the name that tiktoken caches it by."""
    spec = importlib.util.find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    tokenizers = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers"
    folder = tmp_path_factory.mktemp("o200k")
    shutil.copyfile(tokenizers / "fb374d419588a4632f3f557e76b4b70aebbca790", folder / "o200k_base.tiktoken")
    return folder
