from __future__ import annotations

from pathlib import Path

import pytest
from recording_double import RecordingDouble
from tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models `main` and `draft`."""
    parent = tmp_path_factory.mktemp("cuda")
    for name in ("main", "draft"):
        folder = write_tiny_model(parent / name)
        (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    return parent


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> RecordingDouble:
    return RecordingDouble(monkeypatch)
