"""What a template may do, which is what transformers lets it do, and what it may not."""

from __future__ import annotations

import resource
import time
from datetime import datetime
from typing import Any

import psutil
import pytest

from exllamav3_adapters.template_sandbox import CompiledTemplate, TemplateFault, TemplateRefused

NOW = datetime(2026, 5, 4, 12, 30)
UNLIMITED = resource.getrlimit(resource.RLIMIT_AS)


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


DOUBLE = "{%% set ns = namespace(s='x' * 1000, l=[0]) %%}{%% for i in range(40) %%}%s{%% endfor %%}{{ ns.s|length }}"


@pytest.mark.parametrize(
    "source",
    [
        DOUBLE % "{% set ns.s = ns.s ~ ns.s %}",
        DOUBLE % "{% set ns.s = ns.s + ns.s %}",
        DOUBLE % "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}",
        DOUBLE % "{% set ns.s = '%s%s' % (ns.s, ns.s) %}",
        DOUBLE % "{% set ns.s = '%s%s'|format(ns.s, ns.s) %}",
        DOUBLE % "{% set ns.s = '{0}{0}'.format(ns.s) %}",
        DOUBLE % "{% set ns.s = '{s}{s}'.format_map({'s': ns.s}) %}",
        DOUBLE % "{% set ns.s = ns.s.join([ns.s, ns.s]) %}",
        DOUBLE % "{% set ns.s = [ns.s, ns.s]|join %}",
        DOUBLE % "{% set ns.s = ns.s.replace('x', 'xx') %}",
        DOUBLE % "{% set ns.s = ns.s|replace('x', 'xx') %}",
        DOUBLE % "{% set ns.s = ns.s.translate({120: 'xx'}) %}",
        DOUBLE % "{% macro m() %}{{ ns.s }}{{ ns.s }}{% endmacro %}{% set ns.s = m() %}",
        DOUBLE % "{% set ns.l = ns.l + ns.l %}",
        DOUBLE % "{% set _ = ns.l.extend(ns.l) %}",
        DOUBLE % "{% set _ = ns.l.extend(ns.l|map('string')) %}",
        "{% set ns = namespace(n=2**64) %}{% for i in range(40) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%.999999999f' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x'.rjust(999999999) }}",
        "{{ 'x'.center(999999999) }}",
        "{{ 'x'.zfill(999999999) }}",
        "{{ 'x'|center(999999999) }}",
        "{{ ['x']|map('center', 999999999)|list }}",
        "{{ '\t'.expandtabs(999999999) }}",
        "{{ 'x'|indent(999999999, true) }}",
        "{{ [1]|tojson(indent=999999999) }}",
        "{{ [1]|batch(999999999, 0)|list }}",
        "{{ [1]|slice(999999999)|list }}",
        "{{ ('x ' * 10000)|wordwrap(1, wrapstring='y' * 1000000) }}",
        "{{ 'x'.encode().ljust(999999999) }}",
        "{{ (1).to_bytes(999999999, 'big') }}",
        "{{ lipsum(n=999999999) }}",
    ],
)
def test_memory_has_a_bound(source: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**29, UNLIMITED[1]))
    try:
        with pytest.raises(TemplateFault) as fault:
            render(source)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)
    assert "MemoryError" not in str(fault.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in r %}{% for b in r %}{{ loop.index if false }}{% endfor %}{% endfor %}",
        "{% for n in [60] recursive %}{% if n %}{{ loop([n - 1, n - 1]) }}{% endif %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in r %}{% block b scoped %}{% for b in range(99999) %}{% endfor %}{% endblock %}{% endfor %}",
        "{% set s = 'x' * 33000000 %}{% for a in r %}{% set t = s ~ a %}{% endfor %}",
    ],
    ids=["nested loops", "loops that count", "a recursive loop", "a recursive macro", "blocks", "long texts"],
)
def test_time_has_a_bound(source: str) -> None:
    began = time.process_time()
    with pytest.raises(TemplateFault, match="more steps"):
        render("{% set r = range(99999) %}" + source)
    assert time.process_time() - began < 5


def test_a_template_may_look_through_all_messages_for_each() -> None:
    source = "{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}done"
    assert render(source, [{"role": "user", "content": ""}] * 2000) == "done"


def test_each_rendering_has_the_steps_of_its_own() -> None:
    template = CompiledTemplate("{% for i in range(99999) %}{% endfor %}" * 15 + "done")
    assert [template.render([], now=NOW).text for _ in range(3)] == ["done"] * 3


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ [2] }}", "a1None[2]"),
        ("{{ 'a' + 'b' + ('c' * 2) }}{{ [1] + [2] }}{{ 7 % 4 + 2 * 3 }}", "abcc[1, 2]9"),
        ("{{ '%s is %05.1f%%' % ('x', 2.5) }}{{ '%(a)s'|format(a=1) }}{{ '%s-%s'|format(1, 2) }}", "x is 002.5%11-2"),
        ("{{ '{0}-{a:>3}-{1}'.format(1, 2, a=3) }}", "1-  3-2"),
        ("{{ '{a}'.format_map({'a': 1}) }}{{ 'x'.ljust(3, '.') }}{{ '7'.zfill(3) }}", "1x..007"),
        ("{{ ', '.join(['a', 'b']) }}{{ 'ab'|join('-') }}", "a, ba-b"),
        ("{{ [{'n': 1}, {'n': 2}]|join('+', attribute='n') }}", "1+2"),
        ("{{ 'aXbX'.replace('X', '-', 1) }}{{ 'aXbX'|replace('X', '-') }}{{ 'a\nb'|indent(2) }}", "a-bXa-b-a\n  b"),
        ("{{ [1, 2, 3]|batch(2, 0)|list }}", "[[1, 2], [3, 0]]"),
        ("{{ [1, 2, 3]|sum }}{{ [{'n': 2}]|sum(attribute='n') }}", "62"),
        ("{% set q = [1] %}{% set _ = q.extend([2]|map('string')) %}{{ q }}{{ '<'|e ~ '>' }}", "[1, '2']&lt;>"),
        ("{{ dict(self=1, context=2) }}", "{'self': 1, 'context': 2}"),
    ],
)
def test_what_is_in_bounds_is_as_ever(source: str, text: str) -> None:
    assert render(source) == text


def test_a_template_may_fill_lists_of_its_own() -> None:
    assert render("{% set q = [] %}{% set _ = q.append('a') %}{{ q.pop(0) }}") == "a"
