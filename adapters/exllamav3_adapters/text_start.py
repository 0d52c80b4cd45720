"""What a tokenizer puts before plain text that is no chat: mostly a beginning-of-sequence token, or nothing.

A chat's template writes that itself. Plain text has none, so the tokenizer's own configuration decides, as it does in
transformers and the engines that follow it: the text that the model was trained on began so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROBE = "a"


def text_start(tokenizer: Any, config: Mapping[str, Any], bos_token_id: int | None) -> tuple[int, ...]:
    """The tokens that begin every plain text.

    `tokenizer` is a `tokenizers.Tokenizer`, whose post-processor adds them; `config` is `tokenizer_config.json`, whose
    `add_bos_token` has the last word where it is set.
    """
    wanted = config.get("add_bos_token")
    if wanted is False:
        return ()
    plain = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    whole = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    for start in range(1, len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start])
    return (bos_token_id,) if wanted is True and bos_token_id is not None else ()
