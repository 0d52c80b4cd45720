"""`litellm.acompletion` as a library, without a proxy, against real weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from proxy_process import config
from real_tools import OPENAI_TOOLS, QUESTION, is_valid_call

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

_SCRIPT = """
import asyncio, json, sys
import litellm
from litellm_exllamav3.provider import handler

async def main(request):
    litellm.custom_provider_map = [{"provider": "exllamav3", "custom_handler": handler}]
    whole = await litellm.acompletion(**request)
    chunks = [chunk async for chunk in await litellm.acompletion(**request, stream=True)]
    streamed = litellm.stream_chunk_builder(chunks)
    print(json.dumps([answer.choices[0].message.model_dump() for answer in (whole, streamed)]))

asyncio.run(main(json.loads(sys.argv[1])))
"""


def test_a_tool_is_called_whole_and_streamed(tmp_path: Path) -> None:
    model = {"engine": "cpu", "model": {"model_dir": "demo", "max_seq_len": 2048}, "capture": {"enabled": False}}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config({"small": model})))
    request: dict[str, Any] = {
        "model": "exllamav3/small",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": OPENAI_TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 64,
        "temperature": 0,
    }
    environment = {
        **os.environ,
        "LITELLM_EXLLAMAV3_CONFIG": str(path),
        "LITELLM_MASTER_KEY": "sk-unused",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(request)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    whole, streamed = json.loads(done.stdout.splitlines()[-1])
    calls = [message["tool_calls"][0]["function"] for message in (whole, streamed)]
    assert calls[0] == calls[1]
    assert is_valid_call(calls[0]["name"], calls[0]["arguments"])
