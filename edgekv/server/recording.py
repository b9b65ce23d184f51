"""A stored session that a request names: where its conversation and its KV are kept.

A request carries its whole conversation all the same. With a session it goes on after a restart
of the server without being read again.
"""

from collections.abc import Sequence

from edgekv.engine import FinishReason
from edgekv.server.messages import Message
from edgekv.sessions import SessionNotFound, Store


class Recording:
    """A session taken for one request, by this process alone, until `release`.

    Raises SessionInUse where another request or process has it.
    """

    def __init__(self, store: Store, name: str | None, model: str) -> None:
        self._store = store
        try:
            self.session = store.get(name) if name is not None else store.create(model=model)
        except SessionNotFound:
            self.session = store.create(name, model)
        self._lock = store.lock(self.session.id)

    def write(self, messages: Sequence[Message], reply: str, reason: FinishReason) -> None:
        """Make the transcript that of the conversation, as far as it differs, and its reply."""
        stored = self._store.messages(self.session.id)
        told = [(message["role"], message["content"]) for message in messages]
        same = 0
        for message, wanted in zip(stored, told, strict=False):
            if (message.role, message.content) != wanted:
                break
            same += 1
        if same < len(stored):
            self._store.truncate(self.session.id, same)
        for role, content in told[same:]:
            self._store.append(self.session.id, role, content)
        self._store.append(self.session.id, "assistant", reply, finish_reason=reason)

    def release(self) -> None:
        self._lock.release()
