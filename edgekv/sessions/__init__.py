"""Stored conversations. Text and token ids are the truth; KV is a disposable cache of them.

`Store` holds the transcripts and imports no MLX, so that listing and editing them stays light.
"""

from edgekv.sessions.lock import SessionLock
from edgekv.sessions.records import Hit, Message, Session, SessionInUse, SessionNotFound
from edgekv.sessions.records import StoreUnavailable as StoreUnavailable
from edgekv.sessions.store import Store

__all__ = [
    "Hit",
    "Message",
    "Session",
    "SessionInUse",
    "SessionLock",
    "SessionNotFound",
    "Store",
    "StoreUnavailable",
]
