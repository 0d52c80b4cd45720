"""A LiteLLM provider for exllamav3 that keeps hot prompt heads and replays them at start.

Importing this package imports neither litellm nor an engine; `litellm_exllamav3.provider.handler` and
`litellm_exllamav3.hooks.capture` are what a proxy's config names.
"""
