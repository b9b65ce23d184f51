"""One process a session: an advisory lock that ends with its process, however that ends."""

from pathlib import Path

from filelock import FileLock, Timeout

from edgekv.files import private_folder
from edgekv.sessions.records import Session, SessionInUse

PATIENCE_S = 0.2
"""How long to try: `locked_sessions` takes a free lock for a moment, to see that it is free."""


class SessionLock:
    """Holds a session until `release`, or until the process ends."""

    def __init__(self, folder: Path, session_id: str) -> None:
        self._lock = FileLock(private_folder(folder) / f"{session_id}.lock", timeout=0, mode=0o600)

    def acquire(self, session: Session) -> None:
        """Take the session. Raises SessionInUse when another process has it."""
        if not self.try_acquire(PATIENCE_S):
            raise SessionInUse(
                f"session {session.name!r} is open in another edgekv: close it there, "
                f"or go on in a branch (edgekv sessions branch {session.name!r})"
            )

    def try_acquire(self, seconds: float = 0) -> bool:
        """Take the session if nobody has it, or within so many seconds no longer has it."""
        try:
            self._lock.acquire(timeout=seconds, poll_interval=0.01)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        self._lock.release()


def locked_sessions(folder: Path) -> set[str]:
    """Ids of the sessions that some process, this one included, holds now."""
    held = set()
    for path in folder.glob("*.lock"):
        probe = SessionLock(folder, path.stem)
        if probe.try_acquire():
            probe.release()
        else:
            held.add(path.stem)
    return held
