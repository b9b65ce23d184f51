"""A top-level block of Markdown as rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content
from textual.highlight import HighlightTheme, highlight

from edgekv.tui.markdown.inline import lines_of
from edgekv.tui.markdown.rows import NOTHING, Row, indented
from edgekv.tui.markdown.table import Table

HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary"}
CODE_FILL = "on $boost"
BULLETS = "•◦▪"
QUOTE = Content.styled("▎ ", "$foreground 60%")
MAX_DEPTH = 8


@dataclass(frozen=True)
class Block:
    """Rows of a block, or the table they come from; `code` is what copying it gives.

    joined: it goes on with the block before it, without a blank line between.
    """

    parts: tuple[Row | Table, ...]
    code: str | None = None
    joined: bool = False

    def rows(self, width: int) -> list[Row]:
        """The rows at `width` cells, the blank line before the block included."""
        rows = [] if self.joined else [Row(NOTHING)]
        for part in self.parts:
            rows.extend(part.rows(width) if isinstance(part, Table) else [part])
        return rows


def block(node: SyntaxTreeNode, joined: bool) -> Block:
    """The block of one top-level node."""
    code = node.content.removesuffix("\n") if node.type in ("fence", "code_block") else None
    return Block(tuple(_parts(node, 0)), code, joined)


Part = Row | Table


def _parts(node: SyntaxTreeNode, depth: int) -> list[Part]:
    if depth > MAX_DEPTH:
        return [Row(Content(line)) for line in _text(node).splitlines()]
    make = _MAKERS.get(node.type)
    return make(node, depth) if make else [Row(Content(line)) for line in _text(node).split("\n")]


def _text(node: SyntaxTreeNode) -> str:
    inner = (child.content for child in node.walk() if child.type == "inline" or child.content)
    return node.content if not node.children else "\n".join(inner)


def _lines(node: SyntaxTreeNode, style: str = "") -> list[Row]:
    """Rows of a node whose only child is inline."""
    inline = (child.token.children or [] for child in node.children if child.token)
    lines = (line for tokens in inline for line in lines_of(tokens))
    return [Row(line.stylize(style) if style else line) for line in lines]


def _heading(node: SyntaxTreeNode, depth: int) -> list[Part]:
    return [*_lines(node, HEADINGS.get(node.tag, "bold"))]


def _paragraph(node: SyntaxTreeNode, depth: int) -> list[Part]:
    return [*_lines(node)]


def _rule(node: SyntaxTreeNode, depth: int) -> list[Part]:
    return [Row(NOTHING, rule=True)]


def _code(node: SyntaxTreeNode, depth: int) -> list[Part]:
    code = node.content.removesuffix("\n")
    language = (node.info or "").split()
    lines = (
        highlight(code, language=language[0], theme=HighlightTheme).split("\n", allow_blank=True)
        if language and code
        else [Content(line) for line in code.split("\n")]
    )
    margin = Content(" ")
    return [Row(line, margin, margin, CODE_FILL) for line in lines]


def _quote(node: SyntaxTreeNode, depth: int) -> list[Part]:
    return _behind(_stack(node.children, depth + 1, loose=True), QUOTE, QUOTE)


def _list(node: SyntaxTreeNode, depth: int) -> list[Part]:
    number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
    parts: list[Part] = []
    for i, item in enumerate(node.children):
        sign = f"{BULLETS[depth % len(BULLETS)]} " if number is None else f"{number + i}. "
        inner = _stack(item.children, depth + 1, loose=False) or [Row(NOTHING)]
        first = Content.styled(sign, "$text-accent")
        parts.extend(_behind(inner, first, Content(" " * len(sign))))
    return parts


def _table(node: SyntaxTreeNode, depth: int) -> list[Part]:
    lines = [row for part in node.children for row in part.children]
    cells = [tuple(_cell(cell) for cell in row.children) for row in lines]
    return [Table(cells[0], tuple(cells[1:]))]


def _cell(node: SyntaxTreeNode) -> Content:
    return Content(" ").join(row.body for row in _lines(node))


def _stack(nodes: Sequence[SyntaxTreeNode], depth: int, loose: bool) -> list[Part]:
    """The parts of several blocks, a blank row between them where `loose`."""
    parts: list[Part] = []
    for i, node in enumerate(nodes):
        if i and loose:
            parts.append(Row(NOTHING))
        parts.extend(_parts(node, depth))
    return parts


def _behind(parts: list[Part], first: Content, rest: Content) -> list[Part]:
    # A table inside a list or quote is rare: it is laid out for a narrow screen.
    rows = [row for part in parts for row in (part.rows(60) if isinstance(part, Table) else [part])]
    return [*indented(rows, first, rest)]


_MAKERS: dict[str, Callable[[SyntaxTreeNode, int], list[Part]]] = {
    "heading": _heading,
    "paragraph": _paragraph,
    "hr": _rule,
    "fence": _code,
    "code_block": _code,
    "blockquote": _quote,
    "bullet_list": _list,
    "ordered_list": _list,
    "table": _table,
}
