"""The Metal source that MLX generates for a launch, and the same kernel as C++ for clang."""

import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import mlx.core as mx

POINTERS = {"device": "DevicePointer", "threadgroup": "SharedPointer"}


@dataclass(frozen=True)
class Kernel:
    """One instantiation: C++ text that defines it, the name of its launcher, and its parameters.

    parameters: names of the buffers in their order, shapes and strides among them.
    """

    text: str
    launcher: str
    parameters: tuple[str, ...]


def generated(kernel, inputs, **launch) -> str:
    """The complete Metal source of a call, which MLX writes out when the call is exported."""

    def call(*arrays):
        return kernel(inputs=list(arrays), **launch)

    with TemporaryDirectory() as folder:
        path = Path(folder) / "call.mlxfn"
        mx.export_function(str(path), call, *inputs)
        text = path.read_bytes().decode("latin1")
    # The name and the source are the first two strings behind the primitive's own name.
    at = text.index("CustomKernel") + len("CustomKernel")
    strings = []
    for _ in range(2):
        size = int.from_bytes(text[at : at + 8].encode("latin1"), "little")
        strings.append(text[at + 8 : at + 8 + size])
        at += 8 + size
    return strings[1]


def translate(source: str, number: int = 0) -> Kernel:
    """The source as C++ in a namespace of its own, with a launcher that unpacks its buffers."""
    body, instance = re.split(r"template \[\[host_name\(.*?\)\]\] ", source)
    name, arguments = re.search(r"decltype\((\w+)(<.*?>)?\)", instance).groups(default="")
    signature = re.search(rf"void {name}\((.*?)\) {{\n", body, re.DOTALL).group(1)
    buffers = re.findall(
        r"(const device|device|const constant) ([\w<>]+)([*&]) (\w+) \[", signature
    )
    values = [
        f"launch.device<{'const ' * space.startswith('const')}{kind}>({i})"
        if space.endswith("device")
        else f"{'*' * (form == '&')}launch.constant<{kind}>({i})"
        for i, (space, kind, form, _) in enumerate(buffers)
    ]
    attributes = re.findall(r"u?int3? (\w+) \[\[\w+\]\]", signature)
    values += [f"thread.{attribute}" for attribute in attributes]
    launcher = f"kernel_{number}::launch"
    text = (
        f"namespace kernel_{number} {{\nusing namespace metal;\n{_plain(body)}\n"
        "void launch(host::Launch& launch, const host::Thread& thread) {\n"
        f"  {name}{arguments}({', '.join(values)});\n}}\n}}\n"
    )
    return Kernel(text, launcher, tuple(name for *_, name in buffers))


def _plain(text: str) -> str:
    """Address spaces as types: pointers that count or watch, and plain C++ for the rest."""
    text = re.sub(r" ?\[\[[^\]]*\]\] ?", " ", text)
    text = re.sub(r"\bthreadgroup (\w+) (\w+)\[(.*)\];", r"static SharedArray<\1, \3> \2;", text)
    text = re.sub(
        r"(const )?\b(device|threadgroup) (\w+)\s*\*",
        lambda m: f"{POINTERS[m[2]]}<{m[1] or ''}{m[3]}>",
        text,
    )
    return re.sub(r"\b(constant|thread) ", "", text).replace("SharedArray", "host::SharedArray")


def program(kernels: list[Kernel]) -> str:
    """A program that serves launches of these kernels, by their places in the list."""
    texts = "\n".join(kernel.text for kernel in kernels)
    table = ", ".join(kernel.launcher for kernel in kernels)
    return f"{texts}\nint main() {{ return host::serve({{{table}}}); }}\n"
