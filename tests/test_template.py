import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv.errors import TemplateError
from edgekv.template import MAX_TEMPLATE, ChatTemplate, meter
from edgekv.template.meter import MAX_VALUE, measure

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message.content"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]


def render(source, messages=HI, **values):
    return ChatTemplate(source, "<s>", "</s>").render(messages, **values)


def test_messages_become_a_prompt():
    assert render(CHATML) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}x{{ eos_token }}", "<s>x</s>"),
        ("{{ '<b> & \"x\"' }}", '<b> & "x"'),
        ("{{ {'a': '<é>', 'b': [1, None]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("  {% if true %}\nline\n  {% endif %}\n", "line\n"),
        ("{% for i in 'abcd' %}{% if i == 'c' %}{% break %}{% endif %}{{ i }}{% endfor %}", "ab"),
        ("{% for i in 'abc' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "ac"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% endfor %}{{ ns.n }}", "1"),
        ("{% macro f(x, y='!') %}[{{ x }}{{ y }}]{% endmacro %}{{ f('a') }}{{ f('b', '?') }}",
         "[a!][b?]"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ (messages[::-1] | first).content ~ 1 ~ none ~ true }}", "hi1NoneTrue"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{% for k, v in messages[0].items() %}{{ k }}{{ v }}.{% endfor %}", "roleuser.contenthi."),
        ("{{ messages[0].keys() | join(',') }}", "role,content"),
        ("{% for k, v in messages[0] | items %}{{ k }}{% endfor %}", "rolecontent"),
        ("{{ messages[0] | dictsort | list }}", "[('content', 'hi'), ('role', 'user')]"),
        ("{{ messages[0].get('name', 'nobody') }}", "nobody"),
        ("{{ 'a</think>\nb'.split('</think>')[-1].lstrip('\n').strip() }}", "b"),
        ("{{ 'abc'.startswith('ab') and 'x' not in 'abc' }}", "True"),
        ("{{ 'a-b' | replace('-', '+') | upper | trim }}{{ 'q'.replace('q', 'r') }}", "A+Br"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{{ messages | join(d='-', attribute='role') }}", "user"),
        ("{{ 'aaa' | replace(old='a', new='b', count=2) }}{{ '-x-' | trim(chars='-') }}", "bbax"),
        ("{% for m in 'ab' %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}",
         "1False22True2"),
        ("{{ 7 % 3 }}{{ 2 ** 3 }}{{ 2 * 3 }}{{ 'ab' * 2 }}", "186abab"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x | length }}", "a12"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }}{{ messages is sequence }}", "TrueTrue"),
        ("{% for a in [] %}{% else %}none{% endfor %}", "none"),
    ],
)  # fmt: skip
def test_what_published_templates_use_works(source, text):
    assert render(source) == text


def test_tools_and_other_values_reach_the_template():
    tools = [{"name": "f", "parameters": {"x": 1}}]
    source = "{{ tools | tojson }}{{ enable_thinking }}"
    assert render(source, tools=tools, enable_thinking=False) == json.dumps(tools) + "False"


def test_a_template_is_compiled_at_its_first_use():
    broken = ChatTemplate("{{ ", None, None)
    with pytest.raises(TemplateError, match=r"line 1"):
        broken.render(HI)


def test_one_template_renders_many_times():
    chat = ChatTemplate(CHATML, None, None)
    assert len({chat.render(HI) for _ in range(5)}) == 1


def test_missing_tokens_are_empty():
    assert ChatTemplate("{{ bos_token }}|{{ eos_token }}", None, None).render(HI) == "|"


def test_a_refusal_is_told_in_one_line():
    with pytest.raises(TemplateError, match="roles must alternate, not stray") as fault:
        render("{{ raise_exception('roles must\nalternate,\r\n not stray') }}")
    assert "\n" not in str(fault.value)


BROKEN = {
    "syntax": "{% for %}",
    "no end": "{% if true %}",
    "unknown tag": "{% include 'x' %}",
    "undefined": "{{ a.b.c }}",
    "type": "{{ 'a' + 1 }}",
    "zero": "{{ 1 / 0 }}",
    "unknown filter": "{{ 'a' | nonsense }}",
    "deep": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "nested loops": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "too long": "x" * (MAX_TEMPLATE + 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_template_is_one_line(name):
    with pytest.raises(TemplateError, match="the chat template cannot be used") as fault:
        render(BROKEN[name])
    assert "\n" not in str(fault.value) and len(str(fault.value)) < 400


ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "init": "{{ self.__init__ }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "map attribute": "{{ [''] | map(attribute='__class__') | list }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "mutation": "{{ messages.append(1) }}",
    "dict mutation": "{{ messages[0].update(a=1) }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "int method": "{{ (5).to_bytes(10, 'big') }}",
    "loop": "{% for a in [1] %}{{ loop._iterable.__class__ }}{% endfor %}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_the_sandbox_has_no_way_out(name):
    with contextlib.suppress(TemplateError):
        assert render(ESCAPES[name]) in ("", "[Undefined]")


LOOP = "{% for i in range(99999) %}"
END = "{% endfor %}"
GROW = "{% set ns = namespace(x='aaaaaaaa', n=9) %}" + LOOP
DOUBLE = GROW + "{% set ns.x = EXPR %}" + END
MEGA = "{% set x = 'a' * 1000000 %}"
BOMBS = {
    "multiplied text": "{{ 'a' * 10 ** 10 }}",
    "multiplied left": "{{ 10 ** 10 * 'a' }}",
    "multiplied list": "{{ [1] * 10 ** 10 }}",
    "multiplied list of texts": MEGA + "{{ [x] * 1000 }}",
    "a power": "{{ 2 ** (10 ** 9) }}",
    "a power of a power": "{{ 10 ** 10 ** 10 ** 10 ** 10 }}",
    "squares": GROW + "{% set ns.n = ns.n * ns.n %}" + END,
    "doubled by +": DOUBLE.replace("EXPR", "ns.x + ns.x"),
    "doubled by ~": DOUBLE.replace("EXPR", "ns.x ~ ns.x"),
    "doubled by join": DOUBLE.replace("EXPR", "[ns.x, ns.x] | join"),
    "doubled by a block": GROW
    + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    + END,
    "nested lists": DOUBLE.replace("EXPR", "[ns.x, ns.x, ns.x]") + "{{ ns.x }}",
    "nested dicts": DOUBLE.replace("EXPR", "{'a': ns.x, 'b': ns.x}") + "{{ ns.x | tojson }}",
    "nested tuples": DOUBLE.replace("EXPR", "(ns.x, ns.x)") + "{{ ns.x | string }}",
    "a long ~": MEGA + "{{ " + " ~ ".join(["x"] * 1000) + " }}",
    "replace": MEGA + "{{ x | replace('a', x) }}",
    "replace method": MEGA + "{{ x.replace('a', x) }}",
    "replace nothing": MEGA + "{{ x.replace('', x) }}",
    "join": MEGA + "{{ [x] * 5 | join(x) }}{{ range(1000) | join(x) }}",
    "join method": MEGA + "{{ x.join(x) }}",
    "strip": MEGA + "{{ x.strip('b' * 1000000 ~ 'a') }}",
    "trim": MEGA + "{{ x | trim('b' * 1000000 ~ 'a') }}",
    "padding": "{{ 'a'.center(10 ** 9) }}",
    "padding filter": "{{ 'a' | center(10 ** 9) }}",
    "padding mapped": "{{ ['a'] | map('center', 10 ** 9) | list }}",
    "formatted": "{{ '%1000000000d' % 1 }}",
    "format method": "{{ '{:>1000000000}'.format(1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "indented json": "{{ ([1] * 90000) | tojson(indent=1000000) * 99 }}",
    "separated json": MEGA + "{{ ([1] * 90000) | tojson(separators=(x, x)) * 99 }}",
    "a long range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "nested loops": LOOP + LOOP + END + END,
    "nested texts": LOOP + LOOP + "abc" + END + END,
    "texts in a block": "{% set x %}" + LOOP + "y" * 9999 + END + "{% endset %}",
    "a recursive loop": "{% for i in [[1]] recursive %}{{ loop(i) }}{% endfor %}",
    "a namespace in itself": "{% set n = namespace() %}{% set n.a = [n, n] %}{{ n.a }}",
    "a namespace written": "{{ namespace(a=1) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_before_it_costs_much(name):
    begin = time.perf_counter()
    with pytest.raises(TemplateError):
        render(BOMBS[name])
    assert time.perf_counter() - begin < 5


def test_branching_macros_are_stopped_by_the_number_of_steps(monkeypatch):
    monkeypatch.setattr(meter, "MAX_STEPS", 10_000)
    source = (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    )
    with pytest.raises(TemplateError, match="more than 10000 steps"):
        render(source)


def test_slow_work_is_stopped_by_the_deadline(monkeypatch):
    monkeypatch.setattr(meter, "MAX_SECONDS", 0.2)
    source = (
        "{% set x = range(99999) | list %}{% for i in range(9999) %}"
        "{% set y = x | sort %}{% endfor %}"
    )
    begin = time.perf_counter()
    with pytest.raises(TemplateError, match=r"more than 0\.2 seconds"):
        render(source)
    assert time.perf_counter() - begin < 3


def test_output_is_stopped_at_its_cap():
    with pytest.raises(TemplateError, match="writes more than"):
        render("{% for i in range(99) %}{{ messages[0].content }}{% endfor %}",
               [{"role": "user", "content": "a" * 1_000_000}])  # fmt: skip


def test_messages_of_a_megabyte_pass_and_far_larger_ones_do_not():
    text = "é" * 1_000_000
    assert text in render(CHATML, [{"role": "user", "content": text}])
    with pytest.raises(TemplateError, match="messages are larger"):
        render(CHATML, [{"role": "user", "content": "a" * MAX_VALUE}])


def test_a_conversation_of_ten_thousand_messages_is_quick():
    begin = time.perf_counter()
    assert render(CHATML, HI * 10_000).count("hi") == 10_000
    assert time.perf_counter() - begin < 3


def test_lists_grown_message_by_message_are_quick():
    source = (
        "{% set ns = namespace(kept=[]) %}{% for m in messages %}"
        "{% set ns.kept = ns.kept + [m] %}{% endfor %}{{ ns.kept | length }}"
    )
    begin = time.perf_counter()
    assert render(source, HI * 2000) == "2000"
    assert time.perf_counter() - begin < 3


@pytest.mark.parametrize(
    ("value", "least"),
    [("abc", 3), ([1] * 10, 10), ({"a": "bc"}, 3), (range(1000), 1000), (None, 1), (1.5, 1)],
)
def test_values_are_measured_as_they_are_written(value, least):
    assert least <= measure(value) <= MAX_VALUE


@pytest.mark.parametrize("value", [1 << 2000, [object()], ["a" * MAX_VALUE], range(10**9)])
def test_what_is_too_large_or_no_data_measures_too_much(value):
    assert measure(value) > MAX_VALUE


SYNTAX = """
{{ }} {% %} {# #} for in if endfor endif set macro messages | ~ + * ( ) [ ] . - == join list x 'a' 9
range namespace length content loop tojson replace
"""
WORDS = st.lists(st.sampled_from(SYNTAX.split()), max_size=25)


@settings(max_examples=300, deadline=None)
@given(WORDS)
def test_any_template_renders_or_is_refused(words):
    try:
        render(" ".join(words))
    except TemplateError as fault:
        assert "\n" not in str(fault)
