"""Tables of a decode step, and moves of pages."""

import torch

from exllamav3_adapters.cpu.page_kernels import cache_rotate, generator_stage_decode


def test_a_decode_step_gets_its_tables_and_tokens() -> None:
    arena = torch.full((2 * 4 + 4,), -1, dtype=torch.int32)
    tables = [torch.tensor([[7, 3, 9, 1, 5]], dtype=torch.int32), torch.tensor([[2]], dtype=torch.int32)]
    ids = [torch.arange(10, 20)[None], torch.arange(50, 60)[None]]
    pages = [torch.zeros(1, 4, dtype=torch.long) for _ in ids]
    batch_ids = torch.zeros(2, 1, dtype=torch.long)
    generator_stage_decode(arena, 4, tables, [5, 2], [100, 0], batch_ids, ids, pages, [1, 2])
    assert arena.tolist() == [7, 3, 9, 1, 2, 0, 0, 0, 5, 2, 105, 2]
    assert batch_ids.tolist() == [[15], [52]]
    assert [page.tolist() for page in pages] == [[[0, 15, 0, 0]], [[0, 0, 52, 0]]]


def test_a_step_without_tokens_fills_only_the_tables() -> None:
    arena = torch.full((3,), -1, dtype=torch.int32)
    generator_stage_decode(arena, 2, [torch.tensor([[4]], dtype=torch.int32)], [9], [], None, [], [], [])
    assert arena.tolist() == [4, 0, 9]


def test_pages_rotate_through_the_spare_one() -> None:
    cache = torch.arange(3.0)[:, None].repeat(1, 4)
    cache_rotate(cache, torch.tensor([-1, 0, 0, 1, 1, 2, 2, -1], dtype=torch.int32), torch.empty(4))
    assert cache[:, 0].tolist() == [1.0, 2.0, 0.0]
