from __future__ import annotations

import subprocess
import sys

import pytest

from exllamav3_adapters.priority import AUTOGROUP

SHOW = f"""
import os
from exllamav3_adapters.priority import lower_priority
lower_priority(15)
print(os.nice(0), open({str(AUTOGROUP)!r}).read())
"""


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this system does not group tasks by session")
def test_a_session_becomes_nicer_with_the_process_that_leads_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], start_new_session=True, capture_output=True, text=True, check=True
    )
    niceness, group = shown.stdout.split(" ", 1)
    assert int(niceness) >= 15
    assert group.strip().endswith("nice 15")
