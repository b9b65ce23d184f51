"""Markdown that grows: nothing lost under any chunking, at a cost that stays flat."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv.tui.markdown.document import LONG_LINES, LONG_TEXT, Document

WORDS = ["word ", "**bold**", "*", "`code`", "`", "[a](http://b)", "<div>", "\\", "日本"]
LINES = ["- item", "  - nested", "1. one", "12. twelve", "```python", "```", "x = [1]", "> quote"]
LINES += ["# head", "---", "===", "| a | b |", "|---|---|", "[a]: http://b", "    indented", "\t"]
PIECES = st.sampled_from([*WORDS, *(f"{line}\n" for line in LINES), "\n", "\n\n", "\r\n", "\r"])


def text_of(document, width=60):
    """All that is drawn, but for signs of the drawing itself."""
    return [
        row.first.plain + row.body.plain for block in document.blocks for row in block.rows(width)
    ]


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.data())
def test_any_chunking_ends_as_the_whole_text_does(text, data):
    streamed, at = Document(), 0
    while at < len(text):
        step = data.draw(st.integers(1, 12))
        streamed.append(text[at : at + step])
        at += step
    streamed.finish()
    assert streamed.source == text
    assert text_of(streamed) == text_of(Document(text))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.from_regex(r"[a-z]{1,8}", fullmatch=True), min_size=1, max_size=30), st.data())
def test_no_word_is_lost_at_any_moment_of_the_stream(words, data):
    marks = st.sampled_from([" ", "\n", "\n\n", "\n- ", "\n> ", "\n```\n", "\n\n# ", "<b>", " | "])
    text = "".join(word + data.draw(marks) for word in words)
    document, seen = Document(), ""
    for character in text:
        document.append(character)
        seen += character
    shown = " ".join(text_of(document))
    assert all(word in shown for word in words)
    assert "".join(document.source) == seen


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<div>kept</div>", ["<div>kept</div>"]),
        ("[ref]: http://x.y 'title'", ["[ref]: http://x.y 'title'"]),
        ("a\nb", ["a", "b"]),
        ("- one\n- two\n  1. three", ["• one", "• two", "  1. three"]),
        ("3. c\n4. d", ["3. c", "4. d"]),
        ("> said", ["▎ said"]),
        ("# Title\ntext", ["Title", "", "text"]),
        ("```\na\n\n  b\n```", [" a", " ", "   b"]),
        ("[/b] [red]x[/]", ["[/b] [red]x[/]"]),
        ("![alt](http://a/b.png)", ["alt"]),
        ("a  \nb", ["a", "b"]),
        ("&lt;&amp;", ["<&"]),
        ("a\x1b[31mb\x07", ["a␛[31mb␇"]),
    ],
)
def test_what_is_drawn(source, expected):
    assert text_of(Document(source)) == expected


def test_a_table_fits_any_width_and_is_stacked_where_narrow():
    source = "| name | note |\n|---|---|\n| one | some longer words here |\n| two | **b** |\n"
    (block,) = Document(source).blocks
    wide = [row.body.plain for row in block.rows(60)]
    assert wide[0].split() == ["name", "│", "note"]
    assert wide[2].startswith("one  │ some longer words here")
    assert max(row.body.cell_length for row in block.rows(26)) <= 26
    assert [row.body.plain for row in block.rows(10)][:2] == [
        "name: one",
        "note: some longer words here",
    ]


LONG = {
    "prose": "some words in a line of prose, " * 8 + "\n\n",
    "one paragraph": "some words without an end ",
    "list": "- an item of some length\n",
    "code": "x = call(1, 2, 'three')  # four\n",
    "quote": "> a line that is quoted\n",
    "table": "| one | two | three |\n",
}
HEAD = {"code": "```python\n", "table": "| a | b | c |\n|---|---|---|\n"}


@pytest.mark.parametrize("kind", LONG)
def test_the_cost_of_a_token_does_not_grow_with_the_reply(kind):
    document = Document()
    document.append(HEAD.get(kind, ""))
    costs = []
    for _ in range(12):
        before = document.parsed
        for _ in range(1 + 1000 // len(LONG[kind])):
            document.append(LONG[kind])
        costs.append(document.parsed - before)
    assert sum(costs[8:]) < 1.5 * sum(costs[1:5])
    biggest = max(LONG_TEXT, LONG_LINES * len(LONG[kind]))
    assert max(len(block.rows(80)) for block in document.blocks) <= 3 * LONG_LINES + biggest // 70


def test_finished_blocks_are_frozen():
    document = Document()
    document.append("one\n\ntwo\n\nthr")
    first, second = document.frozen
    document.append("ee\n\nfour")
    assert document.frozen[:2] == [first, second]
    assert document.frozen[0] is first
