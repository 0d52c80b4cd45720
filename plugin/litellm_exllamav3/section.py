"""What the sections of the settings have in common: their base class and the types of their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

PAGE_TOKENS = 256
"""Tokens in one page of the cache; sizes are multiples of it."""

BASE_DIR = "base_dir"
"""Key of the validation context: the folder that relative paths start from."""


class Section(BaseModel):
    """Options that stand together. Read once, never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


def rounded_up(tokens: int) -> int:
    """The next multiple of a page, in tokens."""
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


def _whole_pages(tokens: int) -> int:
    if tokens % PAGE_TOKENS:
        below, above = tokens // PAGE_TOKENS * PAGE_TOKENS, rounded_up(tokens)
        near = f"{below} or {above}" if below else str(above)
        raise ValueError(f"should be a multiple of {PAGE_TOKENS} (a page), such as {near}")
    return tokens


def absolute(path: str, base_dir: Path) -> Path:
    """The path from the folder on, `~` being the home folder. Raises ValueError if it can be no path."""
    if not path.strip():
        raise ValueError("should be a path, not an empty text")
    try:
        return (base_dir / Path(path).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot be a path: {reason}") from None


def absolute_path(path: str, info: ValidationInfo) -> str:
    """`absolute`, from the folder that the validation context names."""
    return str(absolute(path, Path((info.context or {}).get(BASE_DIR, Path.cwd()))))


Whole = Annotated[int, BeforeValidator(_no_boolean)]
Real = Annotated[float, BeforeValidator(_no_boolean)]

Count = Annotated[Whole, Field(ge=1)]
CountOrOff = Annotated[Whole, Field(ge=0)]
Pages = Annotated[Whole, Field(ge=PAGE_TOKENS), AfterValidator(_whole_pages)]
"""Tokens, a positive multiple of 256."""
Positive = Annotated[Real, Field(gt=0)]
NotNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, le=1)]
ConfigPath = Annotated[str, AfterValidator(absolute_path)]
"""Absolute once validated; relative ones start from the folder of the config file, `~` is the home folder."""
