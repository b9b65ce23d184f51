"""Text of users, models, titles and paths made safe to draw: no escape reaches the terminal."""

_CONTROLS = (*range(0x20), 0x7F, *range(0x80, 0xA0))

_VISIBLE: dict[int, str] = dict.fromkeys((*_CONTROLS, *range(55296, 57344)), "�")
_VISIBLE |= {code: chr(0x2400 + code) for code in range(0x20)}
_VISIBLE |= {0x2028: " ", 0x2029: " ", ord("\t"): "    "}
# Overrides of direction can make a line read as something else; RTL text needs none of them.
_VISIBLE |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298)), "")
del _VISIBLE[ord("\n")]

_UNTYPED = {code: "" for code in _CONTROLS if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """`text` with controls as visible signs, tabs as spaces, line ends as newlines."""
    return _newlines(text).translate(_VISIBLE)


def one_line(text: str, width: int = 200) -> str:
    """`text` on one line of at most `width` characters, cut with an ellipsis."""
    line = " ".join(printable(text[: 4 * width]).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def typed(text: str) -> str:
    """What was typed, pasted or read, without control characters and what UTF-8 cannot hold."""
    return _newlines(text).translate(_UNTYPED).encode("utf-8", "replace").decode("utf-8")


def _newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
