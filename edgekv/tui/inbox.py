"""Where the events of a reply wait for the screen, which looks in several times a second."""

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekv.engine import Finished


@dataclass
class News:
    """What has come since the last look. tokens: pieces of text so far, about one a token."""

    text: str = ""
    read: tuple[int, int] | None = None
    tokens: int = 0
    notices: list[str] = field(default_factory=list)
    finished: "Finished | None" = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.finished is not None or self.error is not None


@dataclass
class Inbox:
    """Filled by the thread that follows a reply, emptied by the screen."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parts: list[str] = field(default_factory=list)
    _news: News = field(default_factory=News)

    def reading(self, done: int, total: int) -> None:
        """So many tokens of the prompt are read."""
        with self._lock:
            self._news.read = (done, total)

    def write(self, text: str) -> None:
        """More text of the reply."""
        with self._lock:
            self._parts.append(text)
            self._news.tokens += 1

    def notice(self, text: str) -> None:
        """Something that the user should know."""
        with self._lock:
            self._news.notices.append(text)

    def end(self, finished: "Finished | None" = None, error: BaseException | None = None) -> None:
        """Nothing more comes."""
        with self._lock:
            self._news.finished, self._news.error = finished, error

    def take(self) -> News:
        """All that has come; the counts stay."""
        with self._lock:
            news = self._news
            news.text = "".join(self._parts)
            self._parts.clear()
            self._news = News(read=news.read, tokens=news.tokens)
            return news
