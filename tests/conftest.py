"""What every test needs before anything is imported."""

from __future__ import annotations

import os

# LiteLLM fetches its price list from the internet when it is imported, unless this is set.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
