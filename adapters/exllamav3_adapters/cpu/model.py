"""A transformers model in the shape in which exllamav3's scheduler drives one of its own.

The scheduler calls `forward` and `prefill` with token ids, a block table and, for a hybrid model, the recurrent states
of the sequences, and reads a few attributes. All that a sequence has is in exllamav3's cache, so the model itself keeps
nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from exllamav3 import Cache
from exllamav3.cache.recurrent_util import advance_recurrent_states
from exllamav3.modules.gated_delta_net import GDNState
from exllamav3.tokenizer.mm_embedding import FIRST_MM_EMBEDDING_INDEX
from transformers.utils import logging as transformers_logging

from exllamav3_adapters.contract import LoadProgress
from exllamav3_adapters.cpu.attention import ATTENTION, AttentionSite, UnsupportedAttention, register
from exllamav3_adapters.cpu.cache_layer import CpuCacheLayer
from exllamav3_adapters.cpu.layer_probe import LayerSites, find_sites, num_layers
from exllamav3_adapters.cpu.model_folder import read_model_config
from exllamav3_adapters.cpu.paged_batch import PagedBatch, PagedLayer
from exllamav3_adapters.cpu.recurrent_batch import RecurrentBatch, cache_arguments
from exllamav3_adapters.cpu.recurrent_layer import RecurrentSite
from exllamav3_adapters.errors import LoadFailed

# transformers' names for layers that keep keys and values, a recurrent state, both, or nothing.
_LAYER_TYPES = frozenset(
    {"full_attention", "sliding_attention", "linear_attention", "conv", "hybrid", "hybrid_sliding", "moe", "mlp"}
)
_LOAD_STEPS: Final = 3


class ModelConfig(types.SimpleNamespace):
    """What the scheduler, the tokenizer and the disk tier read of a model's config. The tokenizer may add to
    `eos_token_id_list`."""

    directory: str
    config_dict: dict[str, Any]
    infer_params: types.SimpleNamespace
    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_id_list: list[int]
    pad_token_id: int | None


class _CacheLayers:
    """Finds a layer's pages in an exllamav3 cache."""

    def __init__(self, cache: Any) -> None:
        self._layers = cache.layers

    def find(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor, sliding_window: int | None) -> PagedLayer:
        layer: PagedLayer = self._layers[layer_idx, 0]
        return layer


class CpuModel:
    """Runs on the thread that drives the generator. Not thread-safe, and meant to be called in inference mode."""

    loaded_tp = False
    output_device = torch.device("cpu")
    recurrent_state_cls = GDNState
    """exllamav3's own: a sequence's slot and position. Without speculative passes it is the same for every layer."""
    draft_verifier_params: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(self, network: Any, config: ModelConfig, sites: LayerSites) -> None:
        self.network = network
        self.config = config
        self.caps: dict[str, Any] = {"recurrent_states": True} if sites.recurrent else {}
        self.cache_weakrefs: dict[int, Any] = {}
        self._sites = sites
        self._num_layers = num_layers(network)

    @property
    def context_length(self) -> int | None:
        """Most tokens that the model was made for; None where its config does not say."""
        length = getattr(self.network.config.get_text_config(decoder=True), "max_position_embeddings", None)
        return int(length) if length else None

    @property
    def modules(self) -> list[AttentionSite | RecurrentSite]:
        return [*self._sites.attention, *self._sites.recurrent]

    def get_cache_layers(self) -> list[AttentionSite]:
        return self._sites.attention

    def get_recurrent_layers(self) -> list[RecurrentSite]:
        return self._sites.recurrent

    def get_layer_instances(self, layer_idx: int) -> list[tuple[int, int]]:
        return [(layer_idx, 0)]

    def prefetch_tokens(self, token_ids: list[int]) -> None:
        """A hint for models that read their embeddings from disk."""

    def prefill(self, input_ids: torch.Tensor, params: dict[str, Any]) -> None:
        """Computes the pages of `input_ids` (B, T), int64, and no logits. `params` as in `forward`."""
        self._run(self.network.base_model, input_ids, params)

    def forward(self, input_ids: torch.Tensor, params: dict[str, Any]) -> torch.Tensor:
        """Logits (B, T, vocabulary), float32, of `input_ids` (B, T), int64; their pages are written on the way.

        Of `params`: `cache`, `block_table` (B, pages), `cache_seqlens` (B), `recurrent_states` (B, of a hybrid model;
        they advance by T), `last_tokens_only`, which restricts the logits to the last n tokens, and
        `indexed_embeddings`, exllamav3's `MMEmbedding`s, whose rows stand for the ids from `first_index` on.
        """
        keep = params.get("last_tokens_only") or input_ids.shape[1]
        logits: torch.Tensor = self._run(self.network, input_ids, params, logits_to_keep=keep).logits
        return logits

    def _run(self, network: Any, input_ids: torch.Tensor, params: dict[str, Any], **options: Any) -> Any:
        rows, num_tokens = input_ids.shape
        batch = PagedBatch(
            _CacheLayers(params["cache"]), params["block_table"], params["cache_seqlens"], num_tokens, rows
        )
        states = self._recurrent_batch(params, batch)
        output = network(
            **self._inputs(input_ids, params.get("indexed_embeddings") or ()),
            position_ids=batch.positions,
            paged_batch=batch,
            **cache_arguments(states),
            **options,
        )
        if states is not None:
            states.write_back()
            advance_recurrent_states(input_ids, params, self)
        return output

    def _inputs(self, input_ids: torch.Tensor, images: Sequence[Any]) -> dict[str, torch.Tensor]:
        """What the network reads: ids, or their embeddings where some stand for rows of images."""
        if not images or not bool((is_image := input_ids >= FIRST_MM_EMBEDDING_INDEX).any()):
            return {"input_ids": input_ids}
        rows: torch.Tensor = self.network.get_input_embeddings()(input_ids.masked_fill(is_image, 0)).clone()
        for image in images:
            own = (input_ids >= image.first_index) & (input_ids < image.last_index)
            rows[own] = image.embeddings[input_ids[own] - image.first_index].to(rows.dtype)
        return {"inputs_embeds": rows}

    def _recurrent_batch(self, params: dict[str, Any], batch: PagedBatch) -> RecurrentBatch | None:
        if not self._sites.recurrent:
            return None
        starts = [sequence.start for sequence in batch.sequences]
        states = params["recurrent_states"]
        assert [state.position for state in states] == starts, "a recurrent state is not where its pages end"
        layers = {layer_idx: state for (layer_idx, _), state in params["cache"].recurrent_layers.items()}
        return RecurrentBatch(layers, [state.slot for state in states], max(starts), self._num_layers)


def make_cache(model: CpuModel, max_num_tokens: int, *, max_batch_size: int = 16) -> Any:
    """An exllamav3 `Cache` with `max_num_tokens` (a multiple of 256) tokens, zeroed and ready for a `Generator`.

    It takes `tokens * layers * KV heads * (head size + value size) * 4` bytes, and of a hybrid model a recurrent state
    for each of `max_batch_size` sequences; it frees them with the last reference.
    """
    cache = Cache(
        model,
        max_num_tokens=max_num_tokens,
        layer_type=CpuCacheLayer,
        max_batch_size=max_batch_size,
        recurrent_dtype=torch.float,
    )
    for layer in (*cache.layers.values(), *cache.recurrent_layers.values()):
        layer.alloc(torch.device("cpu"))
    cache.initialized = True
    # A cache is attached for models whose loader allocates it; here that would only keep it alive.
    cache.detach_from_model()
    return cache


def load_model(folder: Path, report: Callable[[LoadProgress], None]) -> CpuModel:
    """Loads a Hugging Face folder in float32; blocks for as long as that takes. Call `install()` first.

    `report` is called on this thread, before each step and at the end. Raises `LoadFailed`, which names the fault.
    """
    report(LoadProgress(stage="reading the configuration", done=0, total=_LOAD_STEPS))
    config_dict = read_model_config(folder)
    _refuse_layer_types(folder, config_dict)
    register()
    report(LoadProgress(stage="reading the weights", done=1, total=_LOAD_STEPS))
    network = _load_network(folder)
    report(LoadProgress(stage="checking the layers", done=2, total=_LOAD_STEPS))
    sites = _find_sites(folder, config_dict, network)
    report(LoadProgress(stage="loaded", done=_LOAD_STEPS, total=_LOAD_STEPS))
    return CpuModel(network, _model_config(folder, config_dict, network), sites)


def _refuse_layer_types(folder: Path, config_dict: dict[str, Any]) -> None:
    """Before the weights are read, as far as the config tells."""
    text = config_dict.get("text_config")
    layer_types = set((text if isinstance(text, dict) else config_dict).get("layer_types") or ())
    other = sorted(layer_types - _LAYER_TYPES)
    if other:
        raise _does_not_run(folder, config_dict, f"it has layers of type {', '.join(map(str, other))}")


def _find_sites(folder: Path, config_dict: dict[str, Any], network: Any) -> LayerSites:
    try:
        with torch.inference_mode():
            sites = find_sites(network)
    except UnsupportedAttention as error:
        raise _does_not_run(folder, config_dict, str(error)) from error
    except Exception as error:  # some architectures want a cache of their own kind, and say so in their own ways
        raise _does_not_run(folder, config_dict, f"a few tokens of it failed ({_first_line(error)})") from error
    if not sites.attention:
        raise _does_not_run(folder, config_dict, "no layer has attention, and the engine's cache is made of its pages")
    return sites


def _does_not_run(folder: Path, config_dict: dict[str, Any], why: str) -> LoadFailed:
    return LoadFailed(
        f"model_dir: {folder} ({_name(config_dict)}) does not run on engine cpu: {why}. Choose a model with attention "
        "over the whole text or a sliding window, alone or beside gated delta nets (Qwen3-Next)"
    )


def _name(config_dict: dict[str, Any]) -> str:
    names = config_dict.get("architectures") or [config_dict.get("model_type") or "no architecture named"]
    return ", ".join(map(str, names))


def _load_network(folder: Path) -> Any:
    """The transformers model in float32, in evaluation mode."""
    had_progress_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation=ATTENTION,
            local_files_only=True,
            trust_remote_code=False,  # unset, transformers would ask on the terminal
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises almost anything for a folder that it cannot read
        raise LoadFailed(f"model_dir: transformers could not load {folder}: {_first_line(error)}") from error
    finally:
        if had_progress_bar:
            transformers_logging.enable_progress_bar()
    if loading["missing_keys"]:  # transformers would go on with random weights
        missing = sorted(loading["missing_keys"])
        raise LoadFailed(f"model_dir: {folder} lacks {len(missing)} tensors of the model, among them {missing[0]}")
    return network.eval().requires_grad_(False)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _model_config(folder: Path, config_dict: dict[str, Any], network: Any) -> ModelConfig:
    text = network.config.get_text_config(decoder=True)
    eos = text.eos_token_id if isinstance(text.eos_token_id, list) else [text.eos_token_id]
    eos_list = [token for token in eos if token is not None]
    return ModelConfig(
        directory=str(folder),
        config_dict=config_dict,
        infer_params=types.SimpleNamespace(),
        vocab_size=text.vocab_size,
        bos_token_id=text.bos_token_id,
        eos_token_id=eos_list[0] if eos_list else None,
        eos_token_id_list=eos_list,
        pad_token_id=text.pad_token_id,
    )
