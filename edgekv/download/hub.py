"""Models of the Hugging Face hub; the only module that imports huggingface_hub.

Downloads go to a hub cache of our own, so that removing one is our business; what another tool
left in the user's cache is used as it is. The cache's layout is read here without the library,
whose import takes a third of a second: `refs/<revision>` names a commit, `snapshots/<commit>`
holds links to `blobs/<hash>`.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from edgekv.catalog import HubSource
from edgekv.download.failure import SourceFailed
from edgekv.download.place import CHUNK, REMEDIES, refusal, require_space, size_on_disk
from edgekv.download.progress import Progress
from edgekv.errors import DamagedFile

WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.txt")
VERIFIED = "edgekv-verified"
COMMIT = re.compile(r"[0-9a-f]{40}")


def user_cache() -> Path:
    """The hub cache shared with other tools, where the hub's own variables put it."""
    environ = os.environ
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def repo_folder(source: HubSource, cache: Path) -> Path:
    """Where a hub cache keeps a repository."""
    return cache / f"models--{source.repo.replace('/', '--')}"


def find(source: HubSource, cache: Path) -> Path | None:
    """A complete local copy: one of ours that was verified, else the user's."""
    for repo, needs_mark in (
        (repo_folder(source, cache), True),
        (repo_folder(source, user_cache()), False),
    ):
        commit = _commit(source.revision, repo)
        if commit is None or (needs_mark and not _mark(source, repo, commit).exists()):
            continue
        folder = repo / "snapshots" / commit / (source.subfolder or "")
        if is_complete(folder):
            return folder
    return None


def _commit(revision: str, repo: Path) -> str | None:
    if COMMIT.fullmatch(revision):
        return revision
    try:
        return (repo / "refs" / revision).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _mark(source: HubSource, repo: Path, commit: str) -> Path:
    folder = f"-{source.subfolder.replace('/', '-')}" if source.subfolder else ""
    return repo / VERIFIED / f"{commit}{folder}"


def is_complete(folder: Path) -> bool:
    """True when the configuration and every weight file it should have are there."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(file.is_file() for file in folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        return all((folder / shard).is_file() for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def patterns(source: HubSource) -> tuple[list[str], list[str]]:
    """Which files of the repository to take, and which not: those of one folder, not below."""
    prefix = f"{source.subfolder}/" if source.subfolder else ""
    return [prefix + name for name in WANTED], [f"{prefix}*/*"]


def fetch(source: HubSource, cache: Path, size: int | None, progress: Progress) -> Path:
    """Download and verify a snapshot; an interrupted one is resumed. `size` in bytes, if known.

    Raises SourceFailed when the hub cannot give it, DamagedFile when a file is not what the hub
    says it is, EdgekvError for a full disk or a folder closed to us.
    """
    repo = repo_folder(source, cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if size is not None:
            require_space(cache, size - size_on_disk(repo), source.repo)
    except OSError as error:
        raise refusal(cache, error) from None
    with progress.watch(source.repo, size or 0, lambda: size_on_disk(repo)):
        snapshot = _snapshot(source, cache)
    folder = snapshot / (source.subfolder or "")
    if not is_complete(folder):
        raise SourceFailed("the repository has no config.json with safetensors weights")
    _verify(folder)
    mark = _mark(source, repo, snapshot.name)
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    return folder


def _snapshot(source: HubSource, cache: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    allow, ignore = patterns(source)
    try:
        path = snapshot_download(
            source.repo,
            revision=source.revision,
            cache_dir=cache,
            allow_patterns=allow,
            ignore_patterns=ignore,
        )
    # The client fails with errors of HTTP, of its transfer library and of the system; each
    # means the same here: this source did not give the model.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in REMEDIES:
            raise refusal(cache, error) from None
        raise SourceFailed(_reason(error)) from error
    return Path(path)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".")[:200]


def _verify(folder: Path) -> None:
    for link in sorted(folder.iterdir()):
        blob = link.resolve()
        if blob.is_file() and not _matches(blob):
            link.unlink()
            blob.unlink(missing_ok=True)
            raise DamagedFile(
                f"{link.name} from the hub: expected hash {blob.name}, got something else; "
                "it was removed, pull the model again"
            )


def _matches(blob: Path) -> bool:
    """True unless the blob's name is a hash that its content does not have.

    The hub names a large file by its SHA-256 and a small one by its git object id.
    """
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        digest = hashlib.sha256()
    elif COMMIT.fullmatch(blob.name):
        digest = hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False)
    else:
        return True
    for chunk in _chunks(blob):
        digest.update(chunk)
    return digest.hexdigest() == blob.name


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
