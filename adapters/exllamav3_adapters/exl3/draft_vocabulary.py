"""Whether a draft model speaks of the same tokens as the model that checks its drafts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from exllamav3_adapters.errors import LoadFailed

log = logging.getLogger(__name__)

FILE: Final = "tokenizer.json"
_TOLERATED: Final = 0.01
"""Part of the draft model's tokens: models of one family differ in a few special ones."""


def check_draft_vocabulary(folder: Path, draft_folder: Path) -> None:
    """Drafts of other tokens are never accepted, and cost time all the same. Raises LoadFailed where too many differ.

    A draft model without a tokenizer was made for one model, and takes that one's.
    """
    if not (folder / FILE).is_file() or not (draft_folder / FILE).is_file():
        return
    known = {token_id: text for text, token_id in _vocabulary(folder).items()}
    drafted = _vocabulary(draft_folder)
    differing = sum(known.get(token_id) != text for text, token_id in drafted.items())
    if differing > _TOLERATED * len(drafted):
        raise LoadFailed(
            f"draft_model.draft_model_dir: {differing} of the {len(drafted)} tokens in {draft_folder} are not the "
            "model's; use a draft model of its family"
        )
    if differing:
        log.warning("%d of the draft model's %d tokens are not the model's", differing, len(drafted))


def _vocabulary(folder: Path) -> dict[str, int]:
    try:
        vocabulary: dict[str, int] = Tokenizer.from_file(str(folder / FILE)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the tokenizers library raises plain exceptions
        raise LoadFailed(f"{folder / FILE} cannot be read: {error}") from error
    return vocabulary
