"""What a template may do, which is what transformers lets it do, and what it may not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from exllamav3_adapters.template_sandbox import CompiledTemplate, TemplateFault, TemplateRefused

NOW = datetime(2026, 5, 4, 12, 30)


def render(source: str, messages: Any = (), **variables: Any) -> str:
    return CompiledTemplate(source).render(list(messages), None, variables, now=NOW).text


def test_blocks_are_trimmed() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_json_keeps_signs_and_letters_as_they_are() -> None:
    assert render("{{ x | tojson }}", x={"b": "<é>&'", "a": 1}) == '{"b": "<é>&\'", "a": 1}'


def test_json_takes_an_indent() -> None:
    assert render("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'


def test_loops_have_break_and_continue() -> None:
    inside = "{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}"
    assert render("{% for i in [1,2,3,4] %}" + inside + "{% endfor %}") == "13"


def test_the_generation_tag_renders_its_body() -> None:
    assert render("{% set x = 'a' %}<{% generation %}{{ x }}{% endgeneration %}>") == "<a>"


def test_the_clock_is_the_calls_own() -> None:
    rendering = CompiledTemplate("{{ strftime_now('%Y-%m-%d') }}").render([], now=NOW)
    assert (rendering.text, rendering.clock_reads) == ("2026-05-04", {"%Y-%m-%d": "2026-05-04"})


def test_a_refusal_carries_the_templates_words() -> None:
    with pytest.raises(TemplateRefused, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_fault_names_its_line() -> None:
    with pytest.raises(TemplateFault, match=r"UndefinedError: 'x' is undefined \(line 2 of the template\)"):
        render("a\n{{ x.y }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ messages[0]['content'].clear() }}",
        "{{ namespace(_x=1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 9**9**9 }}",
    ],
)
def test_what_leads_out_of_the_sandbox_is_a_fault(source: str) -> None:
    with pytest.raises(TemplateFault):
        render(source, [{"role": "user", "content": [{"type": "text"}]}])


def test_the_output_has_a_bound() -> None:
    source = "{% for i in range(100000) %}{% for j in range(100000) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateFault, match="more than 33,554,432 characters"):
        render(source)


def test_a_template_may_fill_lists_of_its_own() -> None:
    assert render("{% set q = [] %}{% set _ = q.append('a') %}{{ q.pop(0) }}") == "a"
