"""What becomes of arguments that are no JSON object, where a client must get one."""

from __future__ import annotations

import pytest

from litellm_exllamav3.cut_arguments import as_object


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"city":  "Oslo"}', '{"city":  "Oslo"}'),
        ('{"city": "Os', '{"city": "Os"}'),
        ('{"city": "Oslo", "days":', '{"city": "Oslo"}'),
        ('{"at": {"x": [1, 2', '{"at": {"x": [1, 2]}}'),
        ("{", "{}"),
        ("", "{}"),
        ("[1]", "{}"),
        ("no JSON", "{}"),
    ],
)
def test_what_can_be_read_of_them_is_kept(arguments: str, wanted: str) -> None:
    assert as_object(arguments) == wanted
