"""What a model thinks before it answers, told apart from the answer while both stream in."""

OPEN, CLOSE = "<think>", "</think>"


class ThinkingSplitter:
    """Takes a reply piece by piece; `feed` and `finish` give (thought, answer) pieces."""

    def __init__(self) -> None:
        self._tag = OPEN
        self._held = ""
        self._answering = False

    @property
    def thinking(self) -> bool:
        return self._tag == CLOSE and not self._answering

    def feed(self, text: str) -> tuple[str, str]:
        """Split what is certain; the beginning of a tag is held back until it is whole."""
        if self._answering:
            return "", text
        self._held += text
        if self._tag == OPEN:
            begin = self._held.lstrip()
            if begin.startswith(OPEN):
                self._tag, self._held = CLOSE, begin.removeprefix(OPEN)
            elif OPEN.startswith(begin):
                return "", ""
            else:
                return "", self._give_answer(self._held)
        return self._split_close()

    def finish(self) -> tuple[str, str]:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        return (held, "") if self.thinking else ("", held)

    def _split_close(self) -> tuple[str, str]:
        thought, tag, answer = self._held.partition(CLOSE)
        if tag:
            return thought, self._give_answer(answer)
        sure = len(thought) - _overlap(thought)
        self._held = thought[sure:]
        return thought[:sure], ""

    def _give_answer(self, text: str) -> str:
        self._answering, self._held = True, ""
        return text


def _overlap(text: str) -> int:
    """Characters at the end of `text` that the closing tag may begin with."""
    return next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)


def split(text: str) -> tuple[str, str]:
    """(thought, answer) of a whole reply."""
    splitter = ThinkingSplitter()
    first, last = splitter.feed(text), splitter.finish()
    return first[0] + last[0], first[1] + last[1]
