"""A text that grows, as blocks: what is finished is frozen, only the last block is parsed again."""

from functools import cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from edgekv.tui.markdown.blocks import Block, block
from edgekv.tui.printable import printable

LONG_LINES, LONG_TEXT = 24, 3000
"""Lines and characters from which an unfinished block is cut, so that its cost stays bounded."""


@cache
def _parser() -> MarkdownIt:
    # HTML is text here, and a link definition stays visible: no part of a reply may vanish.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return parser.disable("reference")


def parse(source: str) -> list[SyntaxTreeNode]:
    """The top-level nodes of a text."""
    return SyntaxTreeNode(_parser().parse(source)).children


class Document:
    """The blocks of a text. `parsed` counts the characters given to the parser so far."""

    def __init__(self, source: str = "") -> None:
        self.source = source
        self.frozen: list[Block] = []
        self.open: list[Block] = []
        self.parsed = 0
        self._tail = ""
        self._joined = True
        if source:
            self.finish()

    @property
    def blocks(self) -> list[Block]:
        return [*self.frozen, *self.open]

    def append(self, text: str) -> None:
        """Take in more text: the last block and what is new are parsed, nothing before them."""
        self.source += text
        self._tail += printable(text)
        nodes = self._parse(self._tail)
        if nodes:
            start = _start(nodes[-1])
            for node in nodes[:-1]:
                self._freeze(node)
            self._tail = self._tail.split("\n", start)[start]
            nodes = self._shorten(nodes[-1])
        self.open = [block(node, self._joined) for node in nodes]

    def finish(self) -> None:
        """The text is whole: one parse of all of it, since cuts and half lines may have misled."""
        self.frozen, self.open, self._tail, self._joined = [], [], "", True
        for node in self._parse(printable(self.source)):
            self._freeze(node)

    def _parse(self, text: str) -> list[SyntaxTreeNode]:
        self.parsed += len(text)
        return parse(text)

    def _freeze(self, node: SyntaxTreeNode) -> None:
        self.frozen.append(block(node, self._joined))
        self._joined = False

    def _shorten(self, node: SyntaxTreeNode) -> list[SyntaxTreeNode]:
        """Freeze the head of a long unfinished block; the nodes of what is left of it."""
        if self._tail.count("\n") < LONG_LINES and len(self._tail) < LONG_TEXT:
            return [node]
        cut = _cut(node, self._tail)
        if cut is None:
            return [node]
        head, self._tail = cut
        for part in self._parse(head):
            self._freeze(part)
        self._joined = True
        return self._parse(self._tail)[-1:]


def _start(node: SyntaxTreeNode) -> int:
    return node.map[0] if node.map else 0


def _cut(node: SyntaxTreeNode, text: str) -> tuple[str, str] | None:
    """(text to freeze, text to go on with), or None for a block that is left whole."""
    lines = text.split("\n")
    repeat = {"fence": 1, "table": 2, "blockquote": 0}.get(node.type)
    if repeat is not None and len(lines) > 4:
        # What opens a block is repeated, so that what follows is still read as part of one.
        at = len(lines) - 2
        return "\n".join(lines[:at]), "\n".join([*lines[:repeat], *lines[at:]])
    if node.type in ("bullet_list", "ordered_list") and len(node.children) > 1:
        at = _start(node.children[-1]) - _start(node)
        return "\n".join(lines[:at]), "\n".join(lines[at:])
    space = text.rfind(" ")
    if node.type == "paragraph" and space > LONG_TEXT // 2:
        return text[:space], text[space + 1 :]
    return None
