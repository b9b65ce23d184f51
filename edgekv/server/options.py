"""The fields that every way of asking shares: sampling, length, stops, form, and our own."""

from dataclasses import dataclass, replace
from typing import Literal

from edgekv.config import Config
from edgekv.grammar import Grammar
from edgekv.sampling import Sampling
from edgekv.server.errors import invalid, unsupported
from edgekv.server.fields import Fields
from edgekv.stops import MAX_STOP_LENGTH, MAX_STOPS

MAX_TOKENS = 1 << 24
MAX_SECONDS = 24 * 3600
MAX_BIASES = 1024

IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
)
"""Known fields that say nothing about the answer."""

OF_OTHER_SERVERS = (
    "adapters",
    "draft_model",
    "dynatemp_range",
    "grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "mirostat",
    "n_predict",
    "num_ctx",
    "role_mapping",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
)
"""Fields of other local servers that would change the answer: refused, unless they are off."""


@dataclass(frozen=True)
class Extension:
    """The object `edgekv` of a request: how its cache is to be kept."""

    overflow: Literal["roll", "error"] | None = None
    window: int | None = None
    n_sink: int | None = None
    kv_bits: int | None = None
    return_progress: bool = False
    session_id: str | None = None
    persist: bool | None = None


@dataclass(frozen=True)
class Options:
    """How an answer is to be made, whatever the prompt."""

    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    seconds: float | None
    extension: Extension

    def with_stops(self, stops: tuple[str, ...]) -> "Options":
        return replace(self, stops=stops)


def read_options(
    fields: Fields, config: Config, max_tokens: int | None, vocab_size: int
) -> Options:
    """max_tokens: what the request says under the name its API has, None for the default."""
    fields.accept(*IGNORED)
    fields.refuse_unless_off(*OF_OTHER_SERVERS)
    sampling = read_sampling(fields, config)
    return Options(
        replace(sampling, logit_bias=read_logit_bias(fields, vocab_size)),
        config.max_tokens if max_tokens is None else max_tokens,
        read_stops(fields, "stop"),
        fields.number("timeout", 0, MAX_SECONDS, above=True),
        _extension(fields.nested("edgekv")),
    )


def read_max_tokens(fields: Fields, *names: str) -> int | None:
    """The first of those names that is given; every one must be right."""
    given = [fields.integer(name, 1, MAX_TOKENS) for name in names]
    return next((value for value in given if value is not None), None)


def read_sampling(fields: Fields, config: Config) -> Sampling:
    """What a request leaves out is as in the settings; an unseeded one has a seed of its own."""
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    given = {
        "temp": fields.number("temperature", 0, 2),
        "top_p": fields.number("top_p", 0, 1, above=True),
        "top_k": fields.integer("top_k", 0, 2**31),
        "min_p": fields.number("min_p", 0, 1),
        "repetition_penalty": fields.number("repetition_penalty", 0, 100, above=True),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "seed": None if seed is None else seed % 2**64,
    }
    defaults = {
        "temp": config.temp,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "repetition_penalty": config.repetition_penalty,
        "seed": config.seed,
    }
    chosen = defaults | {key: value for key, value in given.items() if value is not None}
    return Sampling(**chosen)  # type: ignore[arg-type]


def read_logit_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """`logit_bias`: token ids to what is added to their scores."""
    given = fields.nested("logit_bias")
    if given is None:
        return ()
    if len(given.values) > MAX_BIASES:
        raise fields.wrong("logit_bias", f"at most {MAX_BIASES} tokens")
    biases = []
    for key in given.values:
        token = int(key) if key.isascii() and key.isdecimal() and len(key) < 10 else -1
        if not 0 <= token < vocab_size:
            raise invalid(
                f"logit_bias: {key[:32]!r} is not a token of this model (0 to {vocab_size - 1})",
                "logit_bias",
            )
        bias = given.number(key, -100, 100)
        if bias is None:
            raise given.required(key)
        biases.append((token, bias))
    return tuple(biases)


def read_stops(fields: Fields, key: str) -> tuple[str, ...]:
    """Strings that end a reply: one, or a list."""
    value = fields.take(key)
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    expected = f"up to {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters"
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise fields.wrong(key, expected)
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= MAX_STOP_LENGTH:
            raise fields.wrong(key, expected)
    return tuple(stops)


def read_format(fields: Fields, key: str) -> Grammar | None:
    """`response_format`, or `text.format` of a response: free text, any object, or a schema."""
    given = fields.nested(key)
    if given is None:
        return None
    kind = given.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise given.required("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json({"type": "object"})
    # Chat completions have one object more around the schema than responses do.
    holder = given.nested("json_schema") or given
    schema = holder.nested("schema")
    if schema is None:
        raise holder.required("schema")
    holder.accept("name", "description", "strict")
    return Grammar.json(schema.values)


def read_logprobs(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs` of a chat: how many alternatives, None for no scores."""
    wanted = fields.flag("logprobs")
    top = fields.integer("top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise invalid("top_logprobs: needs logprobs to be true", "top_logprobs")
    return (top or 0) if wanted else None


def check_n(fields: Fields) -> None:
    """`n` answers to one prompt: one."""
    n = fields.integer("n", 1, 128)
    if n not in (None, 1):
        raise unsupported(f"n: this server gives one answer to a request, got {n}", "n")


def _extension(fields: Fields | None) -> Extension:
    if fields is None:
        return Extension()
    extension = Extension(
        fields.choice("overflow", ("roll", "error")),  # type: ignore[arg-type]
        fields.integer("window", 1, 2**40),
        fields.integer("sinks", 0, 64),
        fields.integer("kv_bits", 2, 16),
        bool(fields.flag("return_progress")),
        fields.text("session_id"),
        fields.flag("persist"),
    )
    fields.refuse_unknown()
    return extension
