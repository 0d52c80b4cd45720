"""Which tokens are behind the text that was sent, result by result. The results are exllamav3's, as far as read."""

from __future__ import annotations

from typing import Any

import torch

from exllamav3_adapters.conversation_tokens import Piece
from exllamav3_adapters.exl3.sent_tokens import SentTokens

PIECES = ["", "to", "ast", " \ufffd", "\ufffd", "</", "s>", "a</"]
CONTROL, TO, AST, SPACE_BYTE, BYTE, OPEN, CLOSE, A_OPEN = range(8)


def ids(*token_ids: int) -> torch.Tensor:
    return torch.tensor([token_ids], dtype=torch.long)


def sent(*results: tuple[dict[str, Any], str]) -> list[Piece]:
    tokens = SentTokens()
    for result, text in results:
        tokens.add(result, text, PIECES)
    return tokens.pieces


def test_tokens_whose_text_came_together_stay_apart() -> None:
    assert sent(({"token_ids": ids(TO, AST)}, "toast")) == [Piece((TO,), "to"), Piece((AST,), "ast")]


def test_tokens_that_are_held_back_are_not_sent_yet() -> None:
    assert sent(({}, ""), ({"token_ids": ids(TO, AST)}, "toast"))[-1].text == "ast"


def test_the_bytes_of_a_character_are_one_piece() -> None:
    assert sent(({"token_ids": ids(TO, SPACE_BYTE, BYTE)}, "to é")) == [Piece((TO, SPACE_BYTE, BYTE), "to é")]


def test_what_was_held_back_is_sent_when_the_turn_ends_without_the_token_that_ended_it() -> None:
    held = {"text": "toast", "token_ids": ids(TO, AST, CONTROL)}
    assert sent(({"eos_reason": "stop_token", "held": held}, "toast")) == [Piece((TO,), "to"), Piece((AST,), "ast")]


def test_a_stop_string_is_cut_off_at_a_token() -> None:
    stopped = {"eos_reason": "stop_string", "token_ids": ids(TO, OPEN, CLOSE)}
    assert sent((stopped, "to")) == [Piece((TO,), "to")]


def test_a_token_that_a_stop_string_begins_in_is_not_sent() -> None:
    stopped = {"eos_reason": "stop_string", "token_ids": ids(TO, A_OPEN, CLOSE)}
    assert sent((stopped, "toa")) == [Piece((TO,), "to")]


def test_a_stop_string_after_a_broken_character_leaves_what_comes_before_both() -> None:
    stopped = {"eos_reason": "stop_string", "token_ids": ids(TO, BYTE, BYTE, OPEN, CLOSE)}
    assert sent((stopped, "toé")) == [Piece((TO,), "to")]


def test_a_token_without_text_ends_what_is_known() -> None:
    results = [({"token_ids": ids(token)}, text) for token, text in ((TO, "to"), (CONTROL, ""), (AST, "ast"))]
    assert sent(*results) == [Piece((TO,), "to")]
    assert sent(({"token_ids": ids(TO)}, "to"), ({"token_ids": ids(BYTE, CONTROL, BYTE)}, "é")) == [Piece((TO,), "to")]
