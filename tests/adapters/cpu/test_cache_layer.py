"""Pages of keys and values."""

import gc
import weakref
from typing import Any

import torch

from exllamav3_adapters.cpu.model import make_cache


def test_pages_are_float32_and_as_large_as_they_say(tiny: Any) -> None:
    cache = make_cache(tiny.model, 1024)
    assert cache.initialized
    for layer in cache.layers.values():
        tensors = layer.get_tensors()
        assert [tensor.shape for tensor in tensors] == [(4, 256, 2, 16), (4, 256, 2, 16)]
        assert all(tensor.dtype == torch.float32 for tensor in tensors)
        assert layer.storage_size() == sum(tensor.nbytes for tensor in tensors)


def test_a_partial_page_is_copied_up_to_where_it_matches(tiny: Any) -> None:
    cache = make_cache(tiny.model, 512)
    for tensor in cache.get_all_tensors():
        tensor[0] = 1
    cache.copy_page(cache, 0, 1, 7)
    for tensor in cache.get_all_tensors():
        assert tensor[1, :7].eq(1).all()
        assert tensor[1, 7:].eq(0).all()


def test_a_cache_that_nobody_uses_is_freed(tiny: Any) -> None:
    freed = weakref.ref(make_cache(tiny.model, 512))
    gc.collect()
    assert freed() is None
    assert not tiny.model.cache_weakrefs
    assert not any(site.cache_layers for site in tiny.model.get_cache_layers())
