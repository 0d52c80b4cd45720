"""A byte-level BPE tokenizer of any size, learnt from the English text that exllamav3 brings to calibrate with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS: Final = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
"""With the ids 0 to 2: padding, and the begin and the end of a turn."""
_SAMPLE_CHARACTERS: Final = 400_000


def write_tokenizer(folder: Path, vocabulary: int) -> dict[str, int]:
    """Returns token -> id, `vocabulary` of them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = calibration_text("c4")[:_SAMPLE_CHARACTERS]
    tokenizer.train_from_iterator(text.splitlines(), trainer)
    assert tokenizer.get_vocab_size() == vocabulary, "the sample holds enough words to merge"
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab()


def calibration_text(name: str) -> str:
    """One of the texts inside of exllamav3's package, read without importing it."""
    spec = importlib.util.find_spec("exllamav3")
    if spec is None or spec.origin is None:
        raise RuntimeError("exllamav3 is not installed; make gpu-wheels gathers it for a machine without a network")
    path = Path(spec.origin).parent / "conversion" / "standard_cal_data" / f"{name}.utf8"
    return path.read_text(encoding="utf-8")
