"""Inline Markdown as styled text, one Content a line of it."""

from collections.abc import Sequence

from markdown_it.token import Token
from textual.content import Content, Span
from textual.style import Style

_STYLES = {
    "em_open": "italic",
    "strong_open": "bold",
    "s_open": "strike",
    "link_open": "underline",
}
CODE = "$text-warning on $warning 10%"


def lines_of(tokens: Sequence[Token]) -> list[Content]:
    """The lines of an inline token's children; a line break in the source is one on screen."""
    writer = _Writer()
    for token in tokens:
        writer.add(token)
    return Content("".join(writer.text), writer.spans).split("\n", allow_blank=True)


class _Writer:
    """Text so far, and the styles that are open."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.spans: list[Span] = []
        self._open: list[tuple[int, list[str | Style]]] = []
        self._length = 0

    def add(self, token: Token) -> None:
        match token.type:
            case "softbreak" | "hardbreak":
                self._write("\n")
            case "code_inline":
                self._styled(token.content, CODE)
            case "image":
                self._styled(token.content or str(token.attrs.get("src", "")), "italic")
            case kind if kind in _STYLES:
                self._open.append((self._length, _styles(token)))
            case kind if kind.endswith("_close") and self._open:
                start, styles = self._open.pop()
                self.spans.extend(Span(start, self._length, style) for style in styles)
            case _:
                self._write(token.content)

    def _write(self, text: str) -> None:
        self.text.append(text)
        self._length += len(text)

    def _styled(self, text: str, style: str) -> None:
        self.spans.append(Span(self._length, self._length + len(text), style))
        self._write(text)


def _styles(token: Token) -> list[str | Style]:
    styles: list[str | Style] = [_STYLES[token.type]]
    href = str(token.attrs.get("href", ""))
    if href.startswith(("http://", "https://", "mailto:")):
        # The terminal opens it (OSC 8): no click of ours runs anything.
        styles.append(Style(link=href))
    return styles
