from __future__ import annotations

from pathlib import Path

import pytest
from exl3_folder import write_exl3_llama

from exllamav3_adapters.cpu.install import install

install()  # before a test file here imports exllamav3


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama 3.1 8B's shape at 4 bits. Not to be changed."""
    return write_exl3_llama(tmp_path_factory.mktemp("models") / "llama")
