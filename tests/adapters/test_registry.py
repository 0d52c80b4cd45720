from __future__ import annotations

import pytest

from exllamav3_adapters.engine_settings import EngineSettings, ModelOptions
from exllamav3_adapters.errors import LoadFailed
from exllamav3_adapters.registry import engine_names, find_engine


@pytest.mark.parametrize("name", engine_names())
def test_every_name_leads_to_a_class_that_loads(name: str) -> None:
    assert callable(find_engine(name).load)


async def test_the_cuda_engine_says_that_it_is_not_there_yet() -> None:
    settings = EngineSettings(model_key="big", model=ModelOptions(model_dir="/models/big"))
    with pytest.raises(LoadFailed, match="'big': engine cuda is not there yet; engine: cpu"):
        await find_engine("cuda").load(settings, lambda progress: None)
