"""What one rendering of an untrusted template may use: text, items and steps.

Every operation, method and filter whose result can be longer than what it was given says here how long that will be,
before it is made. A step is one round of a loop or a thousand characters that an operator makes, and a call is
several; their number ends nested loops and recursive macros within seconds.

Not bounded are the time of a single filter or method over values within these bounds, what a linear one makes of
them (a split text takes some fifty times its memory), and the text that Python writes for a list that contains itself
many times over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from jinja2 import Environment, filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import pass_environment, pass_eval_context

MAX_TEXT_CHARS = 32 * 2**20
"""Longest text, in characters. A million tokens of text are about 4 MiB."""
MAX_ITEMS = 1_000_000
"""Longest list that a template can make."""
MIN_STEPS = 2_000_000
"""That a rendering may take, beside the square of the number of its messages: some real templates (Gemma 4, Command R)
look through all the others for each of them, and take a quarter to a half of that square."""
STEPS_PER_CALL = 5
"""About what a call takes in rounds of a loop."""
_CHARS_PER_STEP = 1000
_MAX_INTEGER_BITS = 2**16
_MAX_INDENT = 64
_PERCENT_FORMAT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")
_BOUNDED_METHODS = frozenset(
    {"center", "expandtabs", "extend", "join", "ljust", "replace", "rjust", "to_bytes", "translate", "zfill"}
)
_DIGITS = re.compile(r"\d+")


class BoundedContext(Context):
    """A rendering's variables, and the steps that it has left, which all contexts derived from it share."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps_left = [MIN_STEPS + len(self.parent.get("messages", ())) ** 2]

    def spend(self, steps: int = 1) -> None:
        """Raises `SecurityError` when the rendering has had its steps."""
        self._steps_left[0] -= steps
        if self._steps_left[0] < 0:
            raise SecurityError("it takes more steps than a chat of this length may need")

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002 - jinja2's own name
        context = super().derived(locals)
        assert isinstance(context, BoundedContext)
        context._steps_left = self._steps_left
        return context


class BoundedCodeGenerator(CodeGenerator):
    """Compiles a count into each round of a loop, and a check into each `~`."""

    def enter_frame(self, frame: Frame) -> None:
        super().enter_frame(frame)
        if frame.loop_frame:
            self.writeline("context.spend()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's own name
        # The base class's own, whose runtime functions cannot be replaced, with a check around the pieces.
        markup = "context.eval_ctx.volatile" if frame.eval_ctx.volatile else str(bool(frame.eval_ctx.autoescape))
        self.write(f"(markup_join if {markup} else str_join)(environment.check_pieces(context, (")
        for piece in node.nodes:
            self.visit(piece, frame)
            self.write(", ")
        self.write(")))")


def check_text(length: int) -> None:
    if length > MAX_TEXT_CHARS:
        raise SecurityError(f"it makes a text of more than {MAX_TEXT_CHARS:,} characters")


def check_items(length: int) -> None:
    if length > MAX_ITEMS:
        raise SecurityError(f"it makes a list of more than {MAX_ITEMS:,} items")


def check_pieces(context: BoundedContext, pieces: tuple[Any, ...]) -> tuple[Any, ...]:
    """The pieces of a `~`, which together are no text without bounds."""
    length = _text_length(pieces)
    check_text(length)
    if length > _CHARS_PER_STEP:
        context.spend(length // _CHARS_PER_STEP)
    return pieces


def join_pieces(pieces: Iterable[str]) -> str:
    """What a macro or a block that is captured has written."""
    kept = list(pieces)
    check_text(_text_length(kept))
    return "".join(kept)


def check_operation(context: BoundedContext, operator: str, left: Any, right: Any) -> None:
    """Bounds `+`, `*`, `**` and `%`. Raises `SecurityError`."""
    if operator == "+":
        if isinstance(left, (str, bytes, list, tuple)) and isinstance(right, (str, bytes, list, tuple)):
            _check_sequence(context, left, len(left) + len(right))
    elif operator == "%":
        if isinstance(left, (str, bytes)):
            check_percent_format(left, right)
    elif operator == "**":
        if not (abs(left) <= 2**16 and abs(right) <= 64):
            raise SecurityError("a power is too large")
    elif isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
            raise SecurityError("a product is too large")
    else:
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(count, int):
                _check_sequence(context, sequence, len(sequence) * count)


def _check_sequence(context: BoundedContext, sequence: Sized, length: int) -> None:
    (check_text if isinstance(sequence, (str, bytes)) else check_items)(length)
    if length > _CHARS_PER_STEP:
        context.spend(length // _CHARS_PER_STEP)


def check_percent_format(template: str | bytes, values: Any) -> None:
    """Bounds printf's way of formatting."""
    text = template.decode("latin-1") if isinstance(template, bytes) else template
    length = len(text)
    for sizes in _PERCENT_FORMAT.findall(text):
        if "*" in sizes:
            raise SecurityError("a width or precision may not be an argument")
        length += sum(int(size) for size in sizes if size)
    check_text(length + text.count("%") * _longest(values))


def _longest(values: Any) -> int:
    if isinstance(values, Mapping):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        values = (values,)
    return max((len(value) for value in values if isinstance(value, (str, bytes))), default=0)


def _text_length(pieces: Iterable[Any]) -> int:
    return sum(len(piece) for piece in pieces if isinstance(piece, (str, bytes)))


class _CountingFormatter(SandboxedFormatter):
    """Bounds what one `str.format` makes; the sandbox makes one for each method that a template takes hold of."""

    _length = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        for digits in _DIGITS.findall(format_spec):
            check_text(int(digits))
        text = super().format_field(value, format_spec)
        self._length += len(text)
        check_text(self._length)
        return text


class _CountingEscapeFormatter(_CountingFormatter, SandboxedEscapeFormatter):
    pass


def bounded_format(environment: Environment, template: str, of_mapping: bool) -> Callable[..., str]:
    """`template.format`, or `template.format_map`."""

    def format_text(*args: Any, **kwargs: Any) -> str:
        if of_mapping:
            (kwargs,) = args
            args = ()
        escape = getattr(template, "escape", None)
        formatter = (
            _CountingFormatter(environment) if escape is None else _CountingEscapeFormatter(environment, escape=escape)
        )
        return type(template)(formatter.vformat(template, args, kwargs))

    return format_text


def bounded_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call, with iterators read, once the length of what it makes is known to be in bounds."""
    name = getattr(function, "__name__", None)
    if name not in _BOUNDED_METHODS:
        return args
    owner = getattr(function, "__self__", None)
    if isinstance(owner, (str, bytes)):
        return _bounded_text_arguments(owner, name, args, kwargs)
    if isinstance(owner, list) and name == "extend":
        args = (list(args[0]),)
        check_items(len(owner) + len(args[0]))
    elif isinstance(owner, int) and name == "to_bytes":
        check_text(args[0] if args else kwargs.get("length", 1))
    return args


def _bounded_text_arguments(owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """`owner` is a str or bytes."""
    match name, args:
        case "ljust" | "rjust" | "center" | "zfill", (int(width), *_):
            check_text(width)
        case "expandtabs", _:
            (size,) = args or kwargs.values() or (8,)
            check_text(len(owner) + owner.count("\t" if isinstance(owner, str) else b"\t") * size)
        case "replace", (old, new, *_):
            check_text(len(owner) + owner.count(old) * len(new))
        case "translate", (table, *_):
            check_text(len(owner) * max(1, _longest(table)))
        case "join", (pieces,):
            args = (_bounded_pieces(owner, pieces),)
    return args


def _bounded_pieces(separator: Sized, pieces: Iterable[Any]) -> list[Any]:
    kept = list(pieces)
    check_text(_text_length(kept) + len(separator) * len(kept))
    return kept


@pass_eval_context
def _join(eval_ctx: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(eval_ctx.environment, attribute), value)
    return filters.sync_do_join(eval_ctx, _bounded_pieces(d, value), d)


@pass_eval_context
def _replace(eval_ctx: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    text = str(s)
    check_text(len(text) + text.count(str(old)) * len(str(new)))
    return filters.do_replace(eval_ctx, s, old, new, count)


@pass_environment
def _wordwrap(environment: Environment, s: str, *args: Any, **kwargs: Any) -> str:
    check_text(len(s) * max(1, _longest(args), _longest(kwargs)))
    return filters.do_wordwrap(environment, s, *args, **kwargs)


@pass_environment
def _sum(environment: Environment, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise SecurityError("only numbers are added up")
    return filters.sync_do_sum(environment, iterable, attribute, start)


def _center(value: str, width: int = 80) -> str:
    check_text(width)
    return filters.do_center(value, width)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    check_percent_format(str(value), kwargs or args)
    return filters.do_format(value, *args, **kwargs)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    check_text(len(s) + (s.count("\n") + 1) * (len(width) if isinstance(width, str) else width))
    return filters.do_indent(s, width, first, blank)


def _batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Iterable[list[Any]]:
    check_items(linecount)
    return filters.do_batch(value, linecount, fill_with)


def _slice(value: Any, slices: int, fill_with: Any = None) -> Iterable[list[Any]]:
    check_items(slices)
    return filters.sync_do_slice(value, slices, fill_with)


def check_indent(indent: int | str | None) -> None:
    """Of JSON, whose every line repeats it."""
    if indent is not None and (indent if isinstance(indent, int) else len(indent)) > _MAX_INDENT:
        raise SecurityError(f"an indent is more than {_MAX_INDENT} characters")


BOUNDED_FILTERS: Mapping[str, Callable[..., Any]] = {
    "batch": _batch,
    "center": _center,
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "slice": _slice,
    "sum": _sum,
    "wordwrap": _wordwrap,
}
"""In the place of jinja2's own."""
