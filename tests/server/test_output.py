"""Thought, answer and calls are taken apart alike, however the text is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.server.output import Content, Reasoning, Splitter
from edgekv.server.tools import HERMES, LLAMA, Tool, ToolCall, ToolUse

TOOLS = (Tool("f", {"type": "object"}), Tool("g", {"type": "object"}))
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TEXTS = [
    "plain",
    "<think>\nhm</think>\n\nanswer",
    "<think></think>answer",
    "<think>never closed",
    "a < b <think> is late",
    f"so: {CALL}",
    f"{CALL}\n{CALL}",
    f"<think>x</think>{CALL}",
    "<tool_call>not json</tool_call> more",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {}}',
    "<tool_c",
    "<tool_call>",
    "",
    '{"name": "f", "parameters": {}}',
    '{"not": "a call"}',
    "</think> stray",
]


def parts(pieces, syntax=HERMES, thinks=True, thinking=False):
    splitter = Splitter(ToolUse(TOOLS, syntax), thinks, thinking)
    found = [part for piece in pieces for part in splitter.add(piece)] + splitter.finish()
    joined = []
    for part in found:
        if isinstance(part, ToolCall):
            joined.append((part.name, json.loads(part.arguments)))
        elif joined and joined[-1][0] is type(part):
            joined[-1] = (type(part), joined[-1][1] + part.text)
        else:
            joined.append((type(part), part.text))
    return joined


@given(st.sampled_from(TEXTS), st.data(), st.sampled_from([HERMES, LLAMA]), st.booleans())
def test_however_the_text_is_cut_the_parts_are_the_same(text, data, syntax, thinking):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    letters = parts(list(text), syntax, thinking=thinking)
    assert parts(pieces, syntax, thinking=thinking) == letters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", [(Content, "plain")]),
        ("<think>\nhm</think>\n\nanswer", [(Reasoning, "hm"), (Content, "answer")]),
        (f"so:{CALL}", [(Content, "so:"), ("f", {"a": 1})]),
        (f"{CALL}\n{CALL}", [("f", {"a": 1}), ("f", {"a": 1})]),
        ("<tool_call>no</tool_call>!", [(Content, "<tool_call>no</tool_call>!")]),
        ("<tool_call>", [(Content, "<tool_call>")]),
    ],
)
def test_parts_of_a_text(text, expected):
    assert parts(list(text)) == expected


def test_a_prompt_that_opened_the_thought_leaves_only_its_end_to_be_seen():
    assert parts(["hm", "</thi", "nk>\n", "yes"], thinking=True) == [
        (Reasoning, "hm"),
        (Content, "yes"),
    ]


def test_a_family_without_marks_calls_by_a_whole_object():
    assert parts(['{"name": "g", "param', 'eters": {"b": 2}}'], LLAMA) == [("g", {"b": 2})]
    assert parts(['{"a": ', "1}"], LLAMA) == [(Content, '{"a": 1}')]
    assert parts(["It is {", "}"], LLAMA) == [(Content, "It is {}")]
