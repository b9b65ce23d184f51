"""Looking for words in every transcript."""

from edgekv.sessions.records import Hit
from edgekv.sessions.store import Store

EXCERPT = 60
"""Characters of a search hit's excerpt on each side of what was found."""


def search(store: Store, text: str, limit: int = 50) -> list[Hit]:
    """Messages of sessions that are there with `text` in them, whatever its case.

    The last used session comes first, in it the newest message. A scan of the text itself:
    it finds any part of a word in any script, and no index keeps what was deleted.
    """
    wanted, hits = text.casefold(), []
    if not wanted:
        return []
    for session in store.sessions():
        for message in reversed(store.messages(session.id)):
            if (at := message.content.casefold().find(wanted)) < 0:
                continue
            excerpt = message.content[max(0, at - EXCERPT) : at + len(text) + EXCERPT]
            hits.append(Hit(session, message.position, message.role, excerpt))
            if len(hits) == limit:
                return hits
    return hits
