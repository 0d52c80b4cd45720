"""Which tokens begin a plain text, by the tokenizer's own configuration."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from exllamav3_adapters.text_start import text_start

BOS, EOS = 0, 1


def tokenizer(template: str | None) -> Any:
    made = Tokenizer(models.WordLevel({"<s>": BOS, "</s>": EOS, "a": 2}, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if template is not None:
        made.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)]
        )
    return made


@pytest.mark.parametrize(
    ("template", "config", "tokens"),
    [
        ("<s> $A", {}, (BOS,)),
        ("<s> $A", {"add_bos_token": True}, (BOS,)),
        ("<s> $A", {"add_bos_token": None}, (BOS,)),
        ("<s> $A", {"add_bos_token": False}, ()),
        ("<s> $A </s>", {}, (BOS,)),
        ("$A </s>", {}, ()),
        (None, {}, ()),
        (None, {"add_bos_token": True}, (BOS,)),
    ],
)
def test_the_configuration_decides(template: str | None, config: dict[str, Any], tokens: tuple[int, ...]) -> None:
    assert text_start(tokenizer(template), config, BOS) == tokens


def test_a_model_without_such_a_token_begins_with_none() -> None:
    assert text_start(tokenizer(None), {"add_bos_token": True}, None) == ()
