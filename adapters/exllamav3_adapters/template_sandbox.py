"""Runs a model's chat template, which is an untrusted file, with the conventions of transformers.

Templates are written against transformers' `apply_chat_template`: trimmed blocks, loop controls, JSON that is not
escaped for HTML, `raise_exception`, `strftime_now` and the `{% generation %}` tag. transformers' own compiler is not
used because importing it takes seconds and, where torch is installed, brings torch.

The sandbox keeps a template from Python's internals, from the caller's values, and from memory and loops without
bounds. What `template_bounds` says it does not bound, the engine's process contains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from exllamav3_adapters.template_bounds import (
    BOUNDED_FILTERS,
    MAX_TEXT_CHARS,
    STEPS_PER_CALL,
    BoundedCodeGenerator,
    BoundedContext,
    bounded_arguments,
    bounded_format,
    check_indent,
    check_operation,
    check_pieces,
    join_pieces,
)

RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "strftime_now", "raise_exception"})
"""What a chat's own template variables cannot replace."""
_LIST_METHODS = frozenset({"append", "extend", "insert", "pop"})


class TemplateRefused(Exception):
    """The template called `raise_exception`: it cannot express this chat, and says why."""


class TemplateFault(Exception):
    """The template failed on this chat in a way that its author did not foresee."""


class FrozenList(list[Any]):
    """A list of the caller's. The sandbox lets a template change lists that it made itself, and no `FrozenList`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendering:
    """A rendered chat, and what the template read from the clock: strftime format -> result."""

    text: str
    clock_reads: Mapping[str, str]


class CompiledTemplate:
    """A chat template, ready to render. Raises `jinja2.TemplateSyntaxError` where the source is not one."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._template = _ENVIRONMENT.from_string(source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        now: datetime,
    ) -> Rendering:
        """Renders up to where the assistant's turn begins. Messages, tools and variables are plain JSON values.

        Raises `TemplateRefused` and `TemplateFault`.
        """
        clock_reads: dict[str, str] = {}

        def strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by this name
            return clock_reads.setdefault(format, now.strftime(format))

        context: dict[str, Any] = {"documents": None, **(variables or {})}
        context |= {
            "messages": freeze(messages),
            "tools": freeze(tools),
            "add_generation_prompt": True,
            "strftime_now": strftime_now,
            "raise_exception": _raise_exception,
        }
        return Rendering(text=self._render_bounded(context), clock_reads=clock_reads)

    def _render_bounded(self, context: dict[str, Any]) -> str:
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(context):
                length += len(piece)
                if length > MAX_TEXT_CHARS:
                    raise TemplateFault(f"it writes more than {MAX_TEXT_CHARS:,} characters")
                pieces.append(piece)
        except (TemplateRefused, TemplateFault):
            raise
        except Exception as error:  # a template may fail in any way that Python can
            raise TemplateFault(_describe(error)) from error
        return "".join(pieces)


def freeze(value: Any) -> Any:
    """A copy of a JSON value whose lists a template cannot change (it cannot change any dict)."""
    if isinstance(value, Mapping):
        return {key: freeze(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return FrozenList(freeze(item) for item in value)
    return value


def _describe(error: Exception) -> str:
    line = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    where = "" if line is None else f" (line {line} of the template)"
    return f"{type(error).__name__}: {error}{where}"


def _raise_exception(message: object) -> None:
    raise TemplateRefused(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    check_indent(indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _TemplateNamespace(Namespace):
    """`namespace()` without underscore names, which lead to Python's internals."""

    def __init__(*args: Any, **attributes: Any) -> None:
        # The signature is Namespace's own: a template may name an attribute `self`.
        self, *positional = args
        values = dict(*positional, **attributes)
        for name in values:
            _refuse_underscore(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace attribute may not begin with an underscore: {name!r}")


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's text for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render_body"), [], [], body).set_lineno(line)

    def _render_body(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _TemplateEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = BoundedCodeGenerator
    context_class = BoundedContext
    concat = staticmethod(join_pieces)
    check_pieces = staticmethod(check_pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Real templates (Kimi K2) keep queues in lists of their own; those die with the rendering.
        if type(obj) is list and attr in _LIST_METHODS:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        return bounded_format(self, value.__self__, of_mapping=value.__name__ == "format_map")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, BoundedContext)
        check_operation(context, operator, left, right)
        return self.binop_table[operator](left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The names are jinja2's own: a template may name an argument `self`.
        assert isinstance(__context, BoundedContext)
        __context.spend(STEPS_PER_CALL)
        return super().call(__context, __obj, *bounded_arguments(__obj, args, kwargs), **kwargs)


def _make_environment() -> jinja2.Environment:
    environment = _TemplateEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    environment.filters.update(BOUNDED_FILTERS)
    filters: dict[str, Callable[..., Any]] = {"tojson": _tojson, "from_json": json.loads}
    environment.filters.update(filters)
    del environment.globals["lipsum"]  # any amount of it, and another at each rendering
    environment.globals["namespace"] = _TemplateNamespace
    return environment


_ENVIRONMENT = _make_environment()
