from __future__ import annotations

import pytest

from litellm_exllamav3.nonces import DEFAULT_NONCES, MAX_CHARS, MAX_LINES, NonceRules, without_nonces

RULES = NonceRules(DEFAULT_NONCES)
NONCE = "x-anthropic-billing-header: cc_version=2.1.37.3d1; cc_entrypoint=cli; cch=a1b2c;"


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        (f"{NONCE}\nYou are Claude Code.", "You are Claude Code."),
        (f"You are\n{NONCE}\nClaude Code.", "You are\nClaude Code."),
        (f"{NONCE}\r\nYou are Claude Code.\r\n", "You are Claude Code.\r\n"),
        (f"{NONCE}\n{NONCE}\nYou are", "You are"),
        (f"You are\n{NONCE}", "You are\n"),
        (NONCE, ""),
        (f"{NONCE}\n", ""),
    ],
)
def test_nonce_lines_go_with_their_line_end(text: str, stripped: str) -> None:
    assert RULES.strip_text(text) == stripped


@pytest.mark.parametrize("text", ["", "\n", "You are", f"say {NONCE}", f"{NONCE} and more"[3:], "größe\n文件"])
def test_other_text_stays_the_same_object(text: str) -> None:
    assert RULES.strip_text(text) is text


def test_only_the_first_lines_are_looked_at() -> None:
    within = "line\n" * (MAX_LINES - 1) + NONCE
    beyond = "line\n" * MAX_LINES + NONCE
    assert RULES.strip_text(within) == "line\n" * (MAX_LINES - 1)
    assert RULES.strip_text(beyond) is beyond


def test_only_the_first_characters_are_looked_at() -> None:
    beyond = "x" * MAX_CHARS + "\n" + NONCE
    cut_by_the_bound = "x" * (MAX_CHARS - 40) + "\n" + NONCE
    assert RULES.strip_text(beyond) is beyond
    assert RULES.strip_text(cut_by_the_bound) is cut_by_the_bound


def test_rules_are_configuration() -> None:
    rules = NonceRules([r"session-id: [0-9a-f]+", r"(now|date): .*"])
    assert rules.strip_text(f"session-id: 9f\ndate: today\n{NONCE}\nrest") == f"{NONCE}\nrest"
    assert rules.strip_text("session-id: none\nrest") == "session-id: none\nrest"


def test_rules_do_not_touch_each_other() -> None:
    rules = NonceRules([r"(a)b\1", r"(?i)NONCE (x)\1"])
    assert rules.strip_text("aba\nnonce XX\nabX\nrest") == "abX\nrest"


def test_without_rules_nothing_is_dropped() -> None:
    assert NonceRules([]).strip_text(NONCE) is NONCE


def test_a_bad_rule_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\(open' is not a regular expression"):
        NonceRules([r"fine", r"(open"])


def test_a_chat_without_nonces_is_the_same_object() -> None:
    messages = [{"role": "system", "content": "You are"}, {"role": "user", "content": "hi"}]
    assert without_nonces(messages, RULES) is messages


def test_nonces_leave_a_chat_without_changing_it_in_place() -> None:
    messages = [
        {"role": "system", "content": f"{NONCE}\nYou are"},
        {"role": "developer", "content": [{"type": "text", "text": NONCE}, {"type": "text", "text": "Be brief"}]},
        {"role": "user", "content": f"{NONCE}\nwhat is this line?"},
    ]
    before = repr(messages)
    assert without_nonces(messages, RULES) == [
        {"role": "system", "content": "You are"},
        {"role": "developer", "content": [{"type": "text", "text": "Be brief"}]},
        messages[2],
    ]
    assert repr(messages) == before


@pytest.mark.parametrize("content", [None, 7, [None, 3, {"type": "image"}, {"text": None}], {"text": NONCE}])
def test_unknown_content_passes_through(content: object) -> None:
    messages = [{"role": "system", "content": content}]
    assert without_nonces(messages, RULES) is messages
