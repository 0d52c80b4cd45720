from __future__ import annotations

from typing import Any

import pytest

from litellm_exllamav3.privacy import retains

NOTHING_ASKED: dict[str, Any] = {
    "capture_enabled": True,
    "no_log": None,
    "message_logging_off": False,
    "key_metadata": None,
    "team_metadata": {},
}


def test_a_request_is_kept_where_nobody_objects() -> None:
    assert retains(**NOTHING_ASKED)


@pytest.mark.parametrize(
    "objection",
    [
        {"capture_enabled": False},
        {"no_log": True},
        {"no_log": "true"},
        {"no_log": 1},
        {"message_logging_off": True},
        {"key_metadata": {"exllamav3_capture": False}},
        {"key_metadata": {"exllamav3_capture": "false"}},
        {"key_metadata": {"exllamav3_capture": "False "}},
        {"key_metadata": {"exllamav3_capture": "0"}},
        {"key_metadata": {"exllamav3_capture": 0}},
        {"key_metadata": {"exllamav3_capture": "never"}},
        {"team_metadata": {"exllamav3_capture": False}},
        {"key_metadata": {"exllamav3_capture": True}, "team_metadata": {"exllamav3_capture": "off"}},
    ],
)
def test_one_objection_is_enough(objection: dict[str, Any]) -> None:
    assert not retains(**{**NOTHING_ASKED, **objection})


@pytest.mark.parametrize(
    "consent",
    [
        {"no_log": "false"},
        {"no_log": "0"},
        {"message_logging_off": None},
        {"key_metadata": {"exllamav3_capture": True}},
        {"key_metadata": {"exllamav3_capture": "1"}, "team_metadata": {"exllamav3_capture": "true"}},
        {"key_metadata": {"exllamav3_capture": None}},
        {"key_metadata": "not a mapping"},
    ],
)
def test_what_says_yes_or_nothing_is_no_objection(consent: dict[str, Any]) -> None:
    assert retains(**{**NOTHING_ASKED, **consent})
