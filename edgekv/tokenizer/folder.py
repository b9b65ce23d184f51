"""The tokenizer of a model folder: `tokenizer.json`, or else `tokenizer.model`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from edgekv.errors import DamagedFile
from edgekv.template import MAX_TEMPLATE, ChatTemplate
from edgekv.tokenizer.base import Frame, Tokenizer, end_ids
from edgekv.tokenizer.fast import FastTokenizer
from edgekv.tokenizer.spm import SentencePieceTokenizer, processor

MAX_BYTES = 128 << 20
CONFIG = "tokenizer_config.json"


def _read(path: Path, most: int = MAX_BYTES) -> bytes:
    try:
        if path.stat().st_size > most:
            raise DamagedFile(f"{path}: is larger than {most} bytes; check the file")
        return path.read_bytes()
    except OSError as fault:
        raise DamagedFile(f"{path}: cannot be read ({fault.strerror}); check it") from fault


def _object(path: Path) -> dict[str, Any]:
    """A JSON object, {} if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as fault:
        raise DamagedFile(f"{path}: is not JSON ({fault}); download it again") from fault
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def _text(value: object) -> str | None:
    """A token as it is written: a string, or an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _template_source(folder: Path, options: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja`, else the string or the list of named templates in the config."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _read(path, 4 * MAX_TEMPLATE).decode("utf-8", "replace")
    value = options.get("chat_template")
    if isinstance(value, list):
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default") or next(iter(named.values()), None)
    return value if isinstance(value, str) and value else None


def _template(folder: Path, options: Mapping[str, Any]) -> ChatTemplate | None:
    source = _template_source(folder, options)
    bos, eos = _text(options.get("bos_token")), _text(options.get("eos_token"))
    return None if source is None else ChatTemplate(source, bos, eos)


def _frame(
    folder: Path, options: Mapping[str, Any], specials: Mapping[str, int], config: Mapping[str, Any]
) -> Frame:
    bos = specials.get(_text(options.get("bos_token")) or "")
    eos = specials.get(_text(options.get("eos_token")) or "")
    ids = {*config.get("eos_token_id", ()), *([] if eos is None else [eos])}
    return Frame(
        eos_ids=end_ids(ids, specials),
        bos_id=config.get("bos_token_id") if bos is None else bos,
        add_bos=options.get("add_bos_token") is not False,
        chat_template=_template(folder, options),
        limit=config.get("vocab_size"),
    )


def _backend(path: Path) -> tokenizers.Tokenizer:
    raw = _read(path)
    try:
        return tokenizers.Tokenizer.from_buffer(raw)
    except Exception as fault:
        # The library raises bare Exception for everything.
        what = str(fault).splitlines()[0][:200] if str(fault) else "no reason given"
        raise DamagedFile(f"{path}: is refused ({what}); download it again") from fault


def _fast(folder: Path, options: Mapping[str, Any], config: Mapping[str, Any]) -> Tokenizer:
    backend = _backend(folder / "tokenizer.json")
    specials = {t.content: i for i, t in backend.get_added_tokens_decoder().items()}
    frame = _frame(folder, options, specials, config)
    if not isinstance(options.get("add_bos_token"), bool):
        begins = backend.encode("", add_special_tokens=True).ids[:1]
        frame = replace(frame, add_bos=begins == [frame.bos_id])
    return FastTokenizer(backend, frame)


def _added(options: Mapping[str, Any]) -> tuple[dict[str, int], set[int]]:
    """`added_tokens_decoder`: written form to id, and the ids of the special ones."""
    table = options.get("added_tokens_decoder")
    found: dict[str, int] = {}
    special: set[int] = set()
    for key, token in table.items() if isinstance(table, dict) else ():
        content = _text(token)
        if content and key.isascii() and key.isdigit() and len(key) < 9:
            found[content] = int(key)
            if isinstance(token, dict) and token.get("special"):
                special.add(int(key))
    return found, special


def _sentencepiece(
    folder: Path, options: Mapping[str, Any], config: Mapping[str, Any]
) -> Tokenizer:
    backend = processor(_read(folder / "tokenizer.model"))
    ids = range(backend.vocab_size())
    control = {backend.id_to_piece(i): i for i in ids if backend.is_control(i)}
    added, special = _added(options)
    return SentencePieceTokenizer(
        backend,
        _frame(folder, options, control | added, config),
        control | added,
        {*control.values(), *special, *filter(backend.is_unknown, ids)},
    )


BUILDERS = {"tokenizer.json": _fast, "tokenizer.model": _sentencepiece}


def load_tokenizer_folder(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a folder, `tokenizer.json` before `tokenizer.model`.

    config: a validated configuration, whose `eos_token_id` list joins the end ids.
    Raises DamagedFile (none there, malformed) or UnsupportedModel.
    """
    options = _object(folder / "special_tokens_map.json") | _object(folder / CONFIG)
    for name, build in BUILDERS.items():
        if (folder / name).is_file():
            return build(folder, options, config)
    raise DamagedFile(f"{folder}: has neither {' nor '.join(BUILDERS)}; download the model again")
