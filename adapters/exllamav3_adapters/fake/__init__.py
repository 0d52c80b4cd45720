"""A deterministic engine without a model, for the tests of whatever sits in front of an engine."""

from exllamav3_adapters.fake.engine import FakeEngine

__all__ = ["FakeEngine"]
