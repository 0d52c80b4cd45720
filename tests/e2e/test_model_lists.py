"""What a proxy tells of our models once they are loaded."""

from __future__ import annotations

from proxy_process import Proxy


def test_every_list_has_the_context_and_the_features(proxy: Proxy) -> None:
    listed = next(model for model in proxy.get("/v1/models")["data"] if model["id"] == "tiny")
    assert (listed["mode"], listed["max_input_tokens"], listed["max_output_tokens"]) == ("chat", 8192, 8192)
    info = next(model for model in proxy.get("/model/info")["data"] if model["model_name"] == "tiny")["model_info"]
    assert (info["mode"], info["max_tokens"], info["litellm_provider"]) == ("chat", 8192, "exllamav3")
    assert (info["input_cost_per_token"], info["output_cost_per_token"]) == (0, 0)
    assert (info["supports_response_schema"], info["supports_vision"]) == (True, False)
    assert isinstance(info["supports_function_calling"], bool)
    assert isinstance(info["supports_reasoning"], bool)
    group = next(group for group in proxy.get("/model_group/info")["data"] if group["model_group"] == "tiny")
    assert (group["mode"], group["max_input_tokens"]) == ("chat", 8192)
