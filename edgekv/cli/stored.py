"""The stored session that a command goes on with, if any."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from edgekv import config
from edgekv.cli.store import open_store, warn
from edgekv.conversation import joined
from edgekv.errors import InvalidValue
from edgekv.sessions import Session, SessionNotFound, Store, StoreUnavailable
from edgekv.sessions.recording import Recording
from edgekv.sessions.records import check_name

REMEMBERED = ("model", "window", "n_sink", "k_bits", "v_bits", "kv_policy")
"""Settings that a session keeps: its KV depends on them."""

_BITS = {"kv_bits", "k_bits", "v_bits"}


class Stored:
    """A store to read KV from, and the session that a turn is read from and written to.

    name: what a session that is made when its first turn begins is called; None makes none.
    hold: keeps other processes from a session made then.
    """

    def __init__(
        self,
        store: Store | None,
        name: str | None,
        session: Session | None,
        persist: bool,
        hold: Callable[[Session], None],
    ) -> None:
        self.store = store
        self._hold = hold
        self._name = name
        self._session = session
        self._persist = persist

    @property
    def name(self) -> str | None:
        """Of the session that there is by now."""
        return None if self._session is None else self._session.name

    @property
    def session_id(self) -> str | None:
        """The session that KV is to be written for."""
        return self._session.id if self._session is not None and self._persist else None

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The user's flags, and where there are none what the session was begun with."""
        begun_with = self._session.settings if self._session is not None else {}
        kept = {key: begun_with[key] for key in REMEMBERED if begun_with.get(key) is not None}
        flags = {key: value for key, value in given.items() if value is not None}
        by_layer = "kv_policy" in flags or ("kv_policy" in kept and not _BITS & set(flags))
        for key in _BITS if by_layer or "kv_bits" in flags else ():
            kept.pop(key, None)
        if not by_layer:
            kept.pop("kv_policy", None)
        return kept | flags

    def messages(self, text: str, system: str | None, flag: str | None) -> list[dict[str, str]]:
        """The conversation up to a new message of the user's.

        system: what a new conversation begins with; flag: --system, if it was given.
        Raises InvalidValue for another one than the session began with.
        """
        before = []
        if self.store is not None and self._session is not None:
            stored = self.store.messages(self._session.id)
            before = [{"role": one.role, "content": one.content} for one in stored]
            kept = self._session.settings.get("system")
            if isinstance(kept, str) and kept and not (before and before[0]["role"] == "system"):
                # The chat, where it can be changed, keeps it with the session's settings.
                before.insert(0, {"role": "system", "content": kept})
        first = before[0]["content"] if before and before[0]["role"] == "system" else None
        if not before and system is not None:
            before = [{"role": "system", "content": system}]
        elif before and flag is not None and flag != first:
            began = "without a" if first is None else "with another"
            raise InvalidValue(
                f"session {self.name!r} began {began} system message: "
                "leave --system out, or give another --session"
            )
        return joined([*before, {"role": "user", "content": text}])

    def begin(self, text: str, settings: config.Config) -> Recording | None:
        """Write the user's message down, in a session made now where it is new."""
        if self.store is None or not self._persist or not (self._session or self._name):
            return None
        kept = {key: getattr(settings, key) for key in REMEMBERED}
        new = self._session is None
        try:
            if self._session is None:
                self._session = self._create(self.store, settings.model, kept)
            else:
                kept = dict(self._session.settings) | kept
                self.store.configure(self._session.id, settings.model, kept)
        except StoreUnavailable as fault:
            warn(f"this conversation is not being saved: {fault}")
            return None
        recording = Recording(self.store, self._session.id, warn)
        if new and settings.system is not None:
            recording.add("system", settings.system)
        recording.add("user", text)
        return recording

    def _create(self, store: Store, model: str, kept: Mapping[str, Any]) -> Session:
        try:
            session = store.create(self._name, model, kept)
        except InvalidValue:
            # Another process began one of that name since it was looked for: is it there still?
            self._hold(store.get(self._name or ""))
            raise
        self._hold(session)
        return session


@contextmanager
def stored(name: str | None, last: bool, persist: bool) -> Iterator[Stored]:
    """Open the session of that name, or the last one, and hold it until the block ends.

    Without `persist` nothing is written: a session is read, and without one the store is not
    even opened. Raises SessionNotFound, SessionInUse, or InvalidValue.
    """
    if name is not None and last:
        raise InvalidValue("--continue goes on with the last session: leave --session out")
    if name is not None:
        check_name(name)
    with ExitStack() as stack:
        store = _open(name, last, persist)
        if store is None:
            if last:
                raise SessionNotFound("there is no session to continue: begin one with --session")
            yield Stored(None, name, None, persist, lambda session: None)
            return
        stack.callback(store.close)
        session = _find(store, name, last)
        persist = persist and store.writable

        def hold(one: Session) -> None:
            stack.callback(store.lock(one.id).release)

        if session is not None and persist:
            hold(session)
        yield Stored(store, name, session, persist, hold)


def _open(name: str | None, last: bool, persist: bool) -> Store | None:
    """The store, if it is needed: to write in, or to read where it exists.

    The last session cannot be in one that is made now, so none is.
    """
    wanted = name is not None or last
    data = config.paths().data
    try:
        # The copies are enough to go on from.
        exists = (data / "edgekv.db").exists() or (persist and (data / "transcripts").exists())
    except PermissionError:
        # Opening the store says what to do about it.
        exists = True
    if not (exists or (name is not None and persist)) or not (wanted or persist):
        return None
    try:
        store = open_store(read_only=not persist)
    except StoreUnavailable as fault:
        if wanted:
            warn(f"this conversation is not being saved: {fault}")
        return None
    if wanted and persist and not store.writable:
        warn(f"this conversation is not being saved: {store.folder} cannot be written")
    return store


def _find(store: Store, name: str | None, last: bool) -> Session | None:
    if last:
        session = store.last()
        if session is None:
            raise SessionNotFound("there is no session to continue: begin one with --session")
        return session
    if name is None:
        return None
    try:
        return store.get(name)
    except SessionNotFound:
        return None
