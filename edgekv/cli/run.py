"""`edgekv run`: one prompt, one answer on standard output."""

import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edgekv import catalog, config, download
from edgekv.cache.policy import CachePolicy
from edgekv.cli.interrupt import interrupting
from edgekv.cli.options import (
    cache_options,
    model_option,
    sampling_options,
    session_options,
)
from edgekv.cli.output import amount, write_json
from edgekv.cli.show import Plain, Silent, Writer
from edgekv.cli.store import warn
from edgekv.cli.stored import Stored, stored
from edgekv.config import Config
from edgekv.conversation import MAX_PROMPT, chat_prompt, checked, raw_prompt
from edgekv.engine import Engine, Finished, Loaded, Notice, Prefilled, Reply, Request, Text
from edgekv.errors import DoesNotFit, ExitCode, InvalidValue
from edgekv.policies import make_policy
from edgekv.sampling import Sampling
from edgekv.sessions.recording import Recording
from edgekv.stops import StopFilter

_SETTINGS = tuple(config.RULES)


@click.command()
@click.argument("prompt", required=False)
@model_option
@cache_options
@sampling_options
@click.option("--file", "file", type=Path, metavar="PATH", help="Read the prompt from a file.")
@click.option("--raw", is_flag=True, help="No chat template: continue the text.")
@session_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--stats", is_flag=True, help="Print counts and speeds on standard error.")
def run(prompt: str | None, file: Path | None, stops: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401
    """Answer PROMPT. Standard input, if piped, is read and joined after it."""
    text = checked(_prompt_text(prompt, file))
    StopFilter(stops)
    if options["raw"] and (options["session"] or options["last"]):
        raise InvalidValue("--raw continues a text, a session has turns: give one or the other")
    if options["raw"] and options["system"] is not None:
        raise InvalidValue("--raw continues a text, which has no --system: give one or the other")
    with stored(options["session"], options["last"], not options["no_persist"]) as session:
        return _answer(text, stops, session, options)


def _answer(text: str, stops: tuple[str, ...], session: Stored, options: dict[str, Any]) -> int:
    settings = config.load(session.settings({key: options.get(key) for key in _SETTINGS}))
    if settings.system:
        checked(settings.system)
    sampling = _sampling(settings)
    path = download.locate(catalog.resolve(settings.model), progress=download.for_stderr())
    engine = Engine(path, session.store)
    with engine:
        loaded = engine.loaded
        request = _request(loaded, settings, sampling, text, session, options)
        recording = session.begin(text, settings)
        writer = _writer(options["as_json"])
        reply = engine.submit(replace(request, stops=stops, session=session.session_id))
        finished = _follow(reply, writer, recording)
    for notice in engine.notices():
        warn(notice)
    if options["as_json"]:
        report = _report(settings, loaded, request.policy, finished, writer.text)
        write_json(report | {"session": session.name})
    if options["stats"]:
        _print_stats(finished)
    cancelled = finished.reason == "cancelled"
    return ExitCode.INTERRUPTED if cancelled else ExitCode.OK


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    """Argument, file and piped standard input, in that order, a line apart."""
    parts = [] if prompt is None else [prompt]
    if file is not None:
        parts.append(_read_file(file))
    if _is_piped():
        piped = sys.stdin.buffer.read(4 * MAX_PROMPT + 1)
        parts.append(_decode(piped, "standard input").rstrip("\n"))
    parts = [part for part in parts if part]
    if not parts and prompt is None and file is None:
        raise click.UsageError("no prompt: give one as an argument, with --file, or in a pipe")
    return "\n".join(parts)


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file; a terminal or a device has nothing to say."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return _decode(file.read(4 * MAX_PROMPT + 1), str(path)).rstrip("\n")
    except OSError as error:
        raise InvalidValue(f"--file {path}: {error.strerror or error}") from None


def _decode(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(data) > 4 * MAX_PROMPT:
            return data.decode("utf-8", "replace")
        raise InvalidValue(f"{origin}: byte {error.start} is not valid UTF-8") from None


def _sampling(settings: Config) -> Sampling:
    return Sampling(
        settings.temp,
        settings.top_p,
        settings.top_k,
        settings.min_p,
        settings.repetition_penalty,
        settings.seed,
    )


def _request(
    loaded: Loaded,
    settings: Config,
    sampling: Sampling,
    text: str,
    session: Stored,
    options: dict[str, Any],
) -> Request:
    if options["raw"]:
        prompt = raw_prompt(loaded.tokenizer, text)
    else:
        prompt = chat_prompt(
            loaded.tokenizer, session.messages(text, settings.system, options["system"])
        )
    policy = make_policy(
        settings, loaded.shape, prompt, options["pin_system"], options["kv_budget"]
    )
    if policy.window > loaded.shape.context:
        warn(
            f"a window of {policy.window:,} is beyond the {loaded.shape.context:,} tokens "
            "this model was trained on"
        )
    if (raised := loaded.shape.raised(settings.k_bits, settings.kv_policy)) is not None:
        warn(raised)
    max_tokens = settings.max_tokens
    if options["overflow"] == "error":
        max_tokens = _within(policy, len(prompt.tokens), max_tokens)
    return Request(prompt.tokens, policy, sampling, max_tokens)


def _within(policy: CachePolicy, prompt_tokens: int, max_tokens: int) -> int:
    """How long a reply may become before the window would roll. Raises DoesNotFit."""
    room = policy.last_slot + 1
    if prompt_tokens >= room:
        raise DoesNotFit(
            f"the prompt has {prompt_tokens:,} tokens, but the cache holds {room:,}: "
            "raise --window, or let it --overflow roll"
        )
    return min(max_tokens, room - prompt_tokens)


def _writer(as_json: bool) -> Writer:
    if as_json:
        return Silent()
    if not sys.stdout.isatty():
        return Plain()
    # Here, because rich takes a twentieth of a second to load.
    from edgekv.cli.rendered import Rendered

    return Rendered()


def _follow(reply: Reply, writer: Writer, recording: Recording | None) -> Finished:
    """Show a reply as it comes; Ctrl-C stops it and keeps what there is, twice leaves at once."""
    with interrupting(reply.cancel), writer:
        for event in reply:
            match event:
                case Text(text):
                    writer.write(text)
                    if recording is not None:
                        recording.write(text)
                case Prefilled(done, total):
                    writer.reading(done, total)
                case Notice(text):
                    warn(text)
                case Finished():
                    if recording is not None:
                        recording.finish(event.tokens, event.reason)
                    return event
    raise AssertionError("a reply ends with Finished")


def _report(
    settings: Config, loaded: Loaded, policy: CachePolicy, finished: Finished, text: str
) -> dict[str, Any]:
    return {
        "text": text,
        "finish_reason": finished.reason,
        "model": settings.model,
        "usage": {
            "prompt_tokens": finished.prompt_tokens,
            "completion_tokens": finished.completion_tokens,
            "cached_tokens": finished.cached_tokens,
            "evicted_tokens": finished.evicted_tokens,
        },
        "timings": {
            "load_s": loaded.load_s,
            "ttft_s": finished.ttft_s,
            "prefill_tps": finished.prefill_tps,
            "decode_tps": finished.decode_tps,
        },
        "kv": {
            "k_bits": policy.k_bits,
            "v_bits": policy.v_bits,
            "window": policy.window,
            "n_sink": policy.n_sink,
            "pinned": policy.n_pinned,
            "bytes": finished.kv_bytes,
            "peak_bytes": finished.kv_peak_bytes,
            "budget_bytes": policy.nbytes,
            "bytes_per_token": policy.bytes_per_token,
        },
    }


def _print_stats(finished: Finished) -> None:
    click.echo(
        f"{finished.prompt_tokens:,} prompt tokens ({finished.cached_tokens:,} cached) "
        f"at {finished.prefill_tps:.1f}/s, "
        f"first token after {finished.ttft_s:.2f} s, "
        f"{finished.completion_tokens:,} tokens at {finished.decode_tps:.1f}/s, "
        f"{finished.evicted_tokens:,} evicted, KV {amount(finished.kv_bytes)}",
        err=True,
    )
