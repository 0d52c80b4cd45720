"""A head on its way into the store and back."""

from __future__ import annotations

import pytest

from exllamav3_adapters.contract import Head
from litellm_exllamav3.store.records import decode_head, encode_head

SYSTEM = {"role": "system", "content": "Grüße \ud83d"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"z": 2**70, "a": 1}}}


@pytest.mark.parametrize("variables", [{}, {"reasoning_effort": "low", "documents": [{"title": "x"}]}])
def test_a_head_comes_back_as_it_was(variables: dict[str, object]) -> None:
    head = Head(messages=(SYSTEM,), tools=(TOOL,), template_variables=variables)
    found = decode_head(encode_head(head))
    assert found == head
    assert list(found.tools[0]["function"]["parameters"]) == ["z", "a"]


def test_a_head_that_was_written_before_variables_were_kept_has_none() -> None:
    assert decode_head(b'{"messages": [], "tools": []}') == Head()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"messages": []}', b"\xff"])
def test_other_bytes_are_no_head(content: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_head(content)
