"""What of the plugin's log a proxy shows. In processes of their own, since a test run configures logging itself."""

import subprocess
import sys

import pytest


def shown(*, before: str = "", environ: dict[str, str] | None = None) -> str:
    source = f"""
import logging
from litellm_exllamav3.proxy_log import show_log
{before}
show_log({environ or {}!r})
show_log({environ or {}!r})
for name in ("litellm_exllamav3.replay", "exllamav3_adapters.host", "somebody_else"):
    logger = logging.getLogger(name)
    logger.debug("fine detail of %s", name)
    logger.info("progress of %s", name)
    logger.error("fault of %s", name)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=20, check=True)
    return done.stderr


def test_progress_of_both_halves_is_shown_once():
    lines = shown()
    for name in ("litellm_exllamav3.replay", "exllamav3_adapters.host"):
        assert lines.count(f"progress of {name}") == 1
    assert "fine detail" not in lines
    assert "progress of somebody_else" not in lines


@pytest.mark.parametrize(("level", "detail", "progress"), [("DEBUG", 1, 1), ("error", 0, 0), ("nonsense", 0, 1)])
def test_litellms_own_level_counts(level, detail, progress):
    lines = shown(environ={"LITELLM_LOG": level})
    assert lines.count("fine detail of litellm_exllamav3.replay") == detail
    assert lines.count("progress of litellm_exllamav3.replay") == progress
    assert "fault of litellm_exllamav3.replay" in lines


def test_what_the_operator_configured_stays():
    before = "logging.basicConfig(format='ops %(message)s'); logging.getLogger('litellm_exllamav3').setLevel('ERROR')"
    lines = shown(before=before)
    assert lines.count("ops fault of litellm_exllamav3.replay") == 1
    assert "progress of litellm_exllamav3.replay" not in lines
    assert lines.count("ops progress of exllamav3_adapters.host") == 1
