"""What drafts come from: a model of its own, the model's own head, or the text so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from exllamav3_adapters.cuda.components import make_component, read_config
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.exl3.draft_vocabulary import check_draft_vocabulary

_DEFAULT_DRAFT_TOKENS: Final = 4
"""exllamav3's own (`Generator.__init__`)."""


def make_draft_model(settings: EngineSettings, main_config: Any) -> Any | None:
    """exllamav3's draft model, not loaded yet; None where drafts need none. Raises LoadFailed."""
    draft = settings.draft
    if draft.draft_mode == "model":
        if draft.draft_model_dir is None:
            raise LoadFailed("draft_model.draft_model_dir: the folder of the draft model is missing")
        option = "draft_model.draft_model_dir"
        check_draft_vocabulary(Path(main_config.directory), Path(draft.draft_model_dir))
        return make_component(read_config(Path(draft.draft_model_dir), option), "text", option)
    if draft.draft_mode == "mtp":
        model = make_component(main_config, "mtp", "draft_model.draft_mode: mtp")
        if model.caps.get("recurrent_states"):
            raise LoadFailed(
                "draft_model.draft_mode: mtp: this model's head has recurrent layers, which exllamav3 cannot draft "
                "with; use ngram, or model with a draft model"
            )
        return model
    return None


def num_draft_tokens(settings: EngineSettings, draft_model: Any | None) -> int:
    """Most tokens that one step drafts."""
    draft = settings.draft
    regular = 0
    if draft_model is not None:
        regular = draft.draft_num_tokens or draft_model.caps.get("default_draft_size", _DEFAULT_DRAFT_TOKENS)
    elif draft.draft_mode == "ngram":
        regular = draft.draft_num_tokens or _DEFAULT_DRAFT_TOKENS
    return max(regular, draft.hybrid_draft_tokens)
