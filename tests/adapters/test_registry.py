from __future__ import annotations

import pytest
import torch

from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.registry import engine_names, find_engine


@pytest.mark.parametrize("name", engine_names())
def test_every_name_leads_to_a_class_that_loads(name: str) -> None:
    assert callable(find_engine(name).load)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_the_cuda_engine_says_what_it_lacks_and_what_to_use_instead() -> None:
    settings = EngineSettings(model_key="big", model=ModelOptions(model_dir="/models/big"))
    with pytest.raises(LoadFailed, match=r"'big': (torch|GPU|model\.model_dir): .* use engine: cpu"):
        await find_engine("cuda").load(settings, lambda progress: None)
