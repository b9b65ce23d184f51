"""The environment that templates run in: jinja2's sandbox with everything metered."""

import json
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edgekv.template.meter import (
    FILTER_CHECKS,
    METHOD_CHECKS,
    OPERATOR_CHECKS,
    Meter,
    Stopped,
    bounded,
    limit,
    measure,
)

_FILTERS = """
abs capitalize count d default dictsort e escape first float groupby int items join last length
list lower map max min reject rejectattr replace reverse safe select selectattr sort string title
trim unique upper
"""
_STR_METHODS = """
capitalize count endswith find index isalnum isalpha isdigit islower isspace isupper join lower
lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split
splitlines startswith strip swapcase title upper
"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STR_METHODS.split()),
    Mapping: frozenset(("get", "items", "keys", "values")),
    Sequence: frozenset(("count", "index")),
}


class _Turns:
    """What a `for` goes through, each turn counted."""

    def __init__(self, items: Any, meter: Meter) -> None:  # noqa: ANN401
        self._items = items
        self._meter = meter

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        for item in self._items:
            self._meter.step()
            yield item


def _through(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Metering(NodeTransformer):
    """Rewrites a parsed template so that loops, text and literals pass through the meter."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise Stopped("it has a recursive loop, which is not supported")
        self.generic_visit(node)
        node.iter = _through(node.iter, "_turns")
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_literal(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(child, nodes.Const) for child in node.iter_child_nodes())
        stored = getattr(node, "ctx", "load") != "load"
        return node if constant or stored else _through(node, "_bounded")

    visit_List = visit_Tuple = visit_Dict = visit_literal


class _Generation(Extension):
    """`{% generation %}`, which marks what a model is trained on; here its body as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(OPERATOR_CHECKS)

    def __init__(self) -> None:
        # Folding constants would run filters before there is anything to stop them.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[loopcontrols, _Generation],
        )
        self.meter = Meter()
        self.filters = {name: self._metered(name, FILTERS[name]) for name in _FILTERS.split()}
        self.filters |= {
            "tojson": self._metered("tojson", _tojson),
            "_turns": lambda items: _Turns(items, self.meter),
            "_concat": self._concat,
            "_bounded": bounded,
        }
        self.globals = {name: self.globals[name] for name in ("dict", "namespace", "range")} | {
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: datetime.now().strftime(str(pattern)[:256]),
        }
        self.finalize = self._write

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        _Metering().visit(parsed)
        return parsed

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        check = FILTER_CHECKS.get(name)

        @wraps(function)
        def filter_(*args: object, **kwargs: object) -> object:
            self.meter.step()
            if check is not None:
                check(*args, **kwargs)
            return self._settled(function(*args, **kwargs))

        return filter_

    def _settled(self, result: object) -> object:
        """A result that is measured; a lazy one would be computed where nothing measures it."""
        if isinstance(result, (Iterator, MappingView)):
            result = list(_Turns(result, self.meter))
        return bounded(result)

    def _concat(self, parts: list[object]) -> str:
        self.meter.step()
        limit(measure(parts))
        return "".join(map(str, parts))

    # Given a context, jinja2 leaves constants to be written at run time too.
    @jinja2.pass_context
    def _write(self, _context: Context, value: object) -> str:
        limit(measure(value))
        text = str(value)
        self.meter.step(len(text))
        return text

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        for kind, names in METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        ours = type(obj).__module__.startswith("jinja2.")
        return ours and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> None:
        """No wrapped `str.format`: it pads to any width, so it stays an unsafe attribute."""

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        self.meter.step()
        OPERATOR_CHECKS[operator](left, right)
        return bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: object, /, *args: object, **kwargs: object) -> object:
        self.meter.step()
        receiver = getattr(obj, "__self__", None)
        check = METHOD_CHECKS.get(getattr(obj, "__name__", ""))
        if check is not None and isinstance(receiver, str):
            check(receiver, *args, **kwargs)
        return self._settled(super().call(context, obj, *args, **kwargs))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's templates expect it: no HTML escapes, Unicode as it is."""
    spaces = indent if isinstance(indent, int) and 0 <= indent <= 8 else 0
    limit(measure(value) * (1 + 4 * spaces))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=spaces if indent is not None else None,
        separators=(separators[0][:8], separators[1][:8]) if separators else None,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise Stopped(f"it says: {message}")
