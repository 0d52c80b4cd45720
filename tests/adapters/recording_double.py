"""exllamav3's classes as the CUDA engine sees them, without a GPU: what would allocate memory is written down instead.

Configs, models and caches are exllamav3's own, of tiny folders, and never loaded. Every call is bound to the signature
of the installed package, so one that it would not take fails the test, and so does an argument that only a `**kwargs`
would swallow. This shows the form of the calls and not what they do.
"""

# ruff: noqa: E402 - exllamav3 can only be imported after `install`

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from exllamav3_adapters.cpu.install import install

install()

import exllamav3
from exllamav3 import Cache, Config, Generator, Model, Tokenizer
from exllamav3.model.lora import LoRA

from exllamav3_adapters.cuda.loading import load_parts
from exllamav3_adapters.engine_settings import EngineSettings
from exllamav3_adapters.exl3.engine import Exl3Engine
from exllamav3_adapters.load_thread import Report

Call: TypeAlias = tuple[str, dict[str, Any]]
"""What was called, and its arguments by name: models, caches and configs by what they are for."""

NUM_MODULES = 3


class GeneratorMade(Exception):
    """The generator would begin to work now."""


class Adapter:
    """A LoRA adapter as its loader leaves it."""

    def __init__(self, target_modules: dict[str, object]) -> None:
        self.target_modules = target_modules


class RecordingDouble:
    """Takes exllamav3's place until the test ends. Set what the tiny model is to pretend before `load`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Call] = []
        self.recurrent: set[str] = set()
        """Models, by what they are for, that have recurrent layers."""
        self.components: tuple[str, ...] = ()
        """What the main model has beside its text."""
        self.load_error: Exception | None = None
        """Raised when the text model's second module is loaded."""
        self.adapter = Adapter({"model.layers.0": object()})
        self.infer_params: Any = None
        """Of the main model's config, as it was when its weights were loaded."""
        self._names: dict[int, str] = {}
        self._kept: list[object] = []
        self._patch = monkeypatch.setattr
        self._replace_functions()
        self._replace_methods()
        self._replace_classes()

    def load(self, settings: EngineSettings, num_gpus: int, report: Report = lambda progress: None) -> None:
        """What `CudaEngine.load` does once exllamav3 is imported, until its generator is made; then frees it again."""
        loaded = load_parts(settings, report, num_gpus)
        try:
            Exl3Engine("cuda", settings, loaded)
        except GeneratorMade:
            pass
        finally:
            loaded.release()

    def _replace_functions(self) -> None:
        read, make, adapt = Config.from_directory, Model.from_config, LoRA.from_directory

        def from_directory(*arguments: Any, **options: Any) -> Any:
            self._note("Config.from_directory", read, *arguments, **options)
            config = read(*arguments, **options)
            is_main = not any(name == "config" for name in self._names.values())
            if is_main:
                config.model_classes |= dict.fromkeys(self.components, config.model_classes["text"])
            return self._call_it(config, "config" if is_main else "draft config")

        def from_config(*arguments: Any, **options: Any) -> Any:
            bound = self._note("Model.from_config", make, *arguments, **options)
            model = make(*arguments, **options)
            name = bound["component"] if self._names[id(bound["config"])] == "config" else "draft"
            if name in self.recurrent:
                model.caps["recurrent_states"] = True
            return self._call_it(model, name)

        def adapter_from_directory(*arguments: Any, **options: Any) -> Adapter:
            self._note("LoRA.from_directory", adapt, *arguments, **options)
            return self.adapter

        self._patch(Config, "from_directory", staticmethod(from_directory))
        self._patch(Model, "from_config", staticmethod(from_config))
        self._patch(LoRA, "from_directory", staticmethod(adapter_from_directory))

    def _replace_methods(self) -> None:
        load_gen, warmup, override = Model.load_gen, Model.warmup, Config.override_dynamic_seq_len

        def recorded_load(model: Any, *arguments: Any, **options: Any) -> Iterator[tuple[int, int]]:
            self._note("Model.load_gen", load_gen, model, *arguments, **options)
            if self._names[id(model)] == "text":
                self.infer_params = model.config.infer_params
            return self._modules(model)

        def recorded_warmup(model: Any, *arguments: Any, **options: Any) -> list[str]:
            bound = self._note("Model.warmup", warmup, model, *arguments, **options)
            bound["callback"](1, 1)
            return []

        def recorded_override(config: Any, *arguments: Any, **options: Any) -> None:
            self._note("Config.override_dynamic_seq_len", override, config, *arguments, **options)

        self._patch(Model, "load_gen", recorded_load)
        self._patch(Model, "warmup", recorded_warmup)
        self._patch(
            Model, "unload", lambda model: self.calls.append(("Model.unload", {"self": self._names[id(model)]}))
        )
        self._patch(Config, "override_dynamic_seq_len", recorded_override)

    def _replace_classes(self) -> None:
        make_cache, make_tokenizer, make_generator = Cache.__init__, Tokenizer.__init__, Generator.__init__
        double = self

        def cache_init(cache: Any, *arguments: Any, **options: Any) -> None:
            layer = inspect.signature(options["layer_type"].__init__).parameters
            for_layers = {name: options[name] for name in ("k_bits", "v_bits") if name in options and name in layer}
            for_cache = {name: value for name, value in options.items() if name not in for_layers}
            self._note("Cache", make_cache, cache, *arguments, **for_cache)
            self.calls[-1][1].update(for_layers)
            make_cache(cache, *arguments, **options)
            self._call_it(cache, f"cache of {self._names[id(cache.model)]}")

        def tokenizer_init(tokenizer: Any, *arguments: Any, **options: Any) -> None:
            self._note("Tokenizer", make_tokenizer, tokenizer, *arguments, **options)
            make_tokenizer(tokenizer, *arguments, **options)

        class RecordedGenerator(Generator):  # type: ignore[misc]
            @functools.wraps(make_generator)
            def __init__(self, *arguments: Any, **options: Any) -> None:
                double._note("Generator", make_generator, self, *arguments, **options)
                double.calls[-1][1]["tokenizer"] = "tokenizer"  # the engine's own, around that of exllamav3
                raise GeneratorMade

        self._patch(Cache, "__init__", cache_init)
        self._patch(Tokenizer, "__init__", tokenizer_init)
        self._patch(exllamav3, "Generator", RecordedGenerator)

    def _modules(self, model: Any) -> Iterator[tuple[int, int]]:
        for index in range(NUM_MODULES):
            yield index, NUM_MODULES
            if self.load_error is not None and index == 1 and self._names[id(model)] == "text":
                raise self.load_error
        yield NUM_MODULES, NUM_MODULES

    def _note(self, name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        """The arguments by name, after they were written down."""
        bound = inspect.signature(function).bind(*arguments, **options).arguments
        swallowed = bound.get("kwargs", {})
        assert not swallowed, f"{name} takes {', '.join(swallowed)} in its **kwargs only"
        self.calls.append((name, {name: self._shown(value) for name, value in bound.items() if name != "self"}))
        if "self" in bound and id(bound["self"]) in self._names:
            self.calls[-1][1]["self"] = self._names[id(bound["self"])]
        return bound

    def _shown(self, value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return "a function" if callable(value) and not isinstance(value, type) else self._names.get(id(value), value)

    def _call_it(self, thing: Any, name: str) -> Any:
        self._kept.append(thing)  # so that no other object gets its id
        self._names[id(thing)] = name
        return thing
