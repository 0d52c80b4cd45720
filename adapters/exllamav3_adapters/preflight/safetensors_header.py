"""Which tensors a safetensors file holds, from its header alone.

The format (https://huggingface.co/docs/safetensors): 8 bytes with the header's length, the header as JSON, the data.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_LENGTH_BYTES: Final = 8
_LONGEST_HEADER: Final = 256 * 2**20
"""Bytes. That of a model of 300,000 tensors has 40 MiB."""


class BrokenFile(Exception):
    """The file is no whole safetensors file; the message says in what."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of a header."""

    dtype: str
    """As written there: `F16`, `I16`, ..."""
    shape: tuple[int, ...]
    size: int
    """Bytes in the file."""


def read_header(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Raises BrokenFile, and OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH_BYTES)
        if len(start) < _LENGTH_BYTES:
            raise BrokenFile(f"it has {size} bytes, which is no safetensors file")
        (length,) = struct.unpack("<Q", start)
        if start.startswith(b"version "):
            raise BrokenFile("it is a Git LFS pointer, not the file itself")
        if not 0 < length <= _LONGEST_HEADER:
            raise BrokenFile(f"its header claims {length} bytes, so it is no safetensors file")
        header = file.read(length)
    if len(header) < length:
        raise BrokenFile(f"it ends inside its header, after {size} of at least {_LENGTH_BYTES + length} bytes")
    tensors, end = _tensors(header)
    needed = _LENGTH_BYTES + length + end
    if size < needed:
        raise BrokenFile(f"it is cut short: {size} of {needed} bytes are there")
    return tensors


def _tensors(header: bytes) -> tuple[dict[str, Tensor], int]:
    """With the last byte of data that one of them names."""
    try:
        entries: dict[str, Any] = json.loads(header)
        found = {
            name: (entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise BrokenFile("its header is not that of a safetensors file") from error
    tensors = {name: Tensor(dtype, shape, end - begin) for name, (dtype, shape, begin, end) in found.items()}
    return tensors, max((end for *_, end in found.values()), default=0)
