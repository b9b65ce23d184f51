"""Metal kernels on the CPU: MLX's generated source, compiled by clang and run with every thread.

Barriers and simdgroup operations have their real meaning; races on threadgroup memory, barriers
that not all threads reach, and steps outside of memory end the program with a message. What this
cannot see: speed, registers, and arithmetic that a GPU does otherwise than IEEE.
"""

import ctypes
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from tests.metal.host.compile import build
from tests.metal.host.translate import Kernel, generated, translate

ORDERS = ("forward", "reversed", "shuffled")
METAL_KERNEL = mx.fast.metal_kernel


class Trap(AssertionError):
    """A kernel did what Metal forbids; the message says what."""


@dataclass(frozen=True)
class Traffic:
    """What one launch touched: how often each byte of each buffer, inputs read, outputs written."""

    counts: dict[str, np.ndarray]
    threadgroup_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes read and written, each as often as it was."""
        return sum(int(counts.sum(dtype=np.int64)) for counts in self.counts.values())


class Host:
    """Stands in for MLX's Metal back-end: `metal_kernel` here makes kernels that run on the CPU.

    edit: a change to each text of a kernel before it is built.
    """

    def __init__(self, edit=lambda text: text) -> None:
        self.order, self.seed = "forward", 0
        self.traffic: dict[str, Traffic] = {}
        self.edit = edit
        self._built: dict[str, tuple[Path, int, Kernel]] = {}
        self._recorded: list[str] | None = None

    def metal_kernel(self, name, input_names, output_names, source, **options) -> "HostKernel":
        options["header"] = self.edit(options.get("header", ""))
        made = METAL_KERNEL(name, input_names, output_names, self.edit(source), **options)
        contiguous = options.get("ensure_row_contiguous", True)
        return HostKernel(self, name, input_names, output_names, contiguous, made)

    def prepare(self, calls, programs: int = 2) -> None:
        """Build what a list of calls will launch, together and on all cores, without running it."""
        self._recorded = []
        for call in calls:
            call()
        wanted = [s for s in dict.fromkeys(self._recorded) if s not in self._built]
        self._recorded = None
        parts = [part for part in (wanted[i::programs] for i in range(programs)) if part]
        with ThreadPoolExecutor(programs) as pool:
            list(pool.map(self._build, parts))

    def _build(self, sources: list[str]) -> None:
        kernels = [translate(source, i) for i, source in enumerate(sources)]
        path = build(kernels)
        for i, source in enumerate(sources):
            self._built[source] = path, i, kernels[i]

    def launch(self, name, source, buffers, outputs, grid, threadgroup) -> list[bytes]:
        """Run a launch; buffers by name, of which the last are outputs, given by their sizes."""
        if self._recorded is not None:
            self._recorded.append(source)
            return [bytes(size) for size in outputs.values()]
        if source not in self._built:
            self._build([source])
        path, index, kernel = self._built[source]
        inputs = [buffers[parameter] for parameter in kernel.parameters if parameter in buffers]
        request = struct.pack(
            "<IIIIIIIIIII", index, *grid, *threadgroup, ORDERS.index(self.order), self.seed,
            len(inputs) + len(outputs), len(inputs),
        )  # fmt: skip
        request += b"".join(struct.pack("<Q", len(data)) + data for data in inputs)
        request += b"".join(struct.pack("<Q", size) for size in outputs.values())
        done = subprocess.run([path], input=request, capture_output=True)
        if done.returncode:
            raise Trap(done.stderr.decode(errors="replace")[:3000])
        sizes = {name: len(buffers[name]) for name in kernel.parameters if name in buffers}
        return self._unpack(name, done.stdout, sizes, outputs)

    def _unpack(self, name, reply, inputs, outputs) -> list[bytes]:
        (shared,), at = struct.unpack_from("<Q", reply), 8
        counts, results = {}, []
        for buffer, size in (inputs | outputs).items():
            if buffer in outputs:
                results.append(reply[at : at + size])
                at += size
            counts[buffer] = np.frombuffer(reply, np.uint16, size, at)
            at += 2 * size
        assert at == len(reply)
        self.traffic[name] = Traffic(counts, shared)
        return results


@dataclass(frozen=True)
class HostKernel:
    """A kernel of mx.fast.metal_kernel that is called as such and runs on the CPU."""

    host: Host
    name: str
    input_names: list[str]
    output_names: list[str]
    contiguous: bool
    made: Callable[..., list[mx.array]]

    def __call__(self, *, inputs, **launch):
        source = generated(self.made, inputs, **launch)
        buffers = {}
        for name, array in zip(self.input_names, inputs, strict=True):
            array = mx.contiguous(array) if self.contiguous else array
            data, shape, strides = flat(array)
            buffers[name] = data
            buffers[f"{name}_shape"] = np.array(shape, np.int32).tobytes()
            buffers[f"{name}_strides"] = np.array(strides, np.int64).tobytes()
        made = list(zip(launch["output_shapes"], launch["output_dtypes"], strict=True))
        sizes = [int(np.prod(shape)) * dtype.size for shape, dtype in made]
        outputs = dict(zip(self.output_names, sizes, strict=True))
        grid, threadgroup = launch["grid"], launch["threadgroup"]
        results = self.host.launch(self.name, source, buffers, outputs, grid, threadgroup)
        return [
            mx.array(np.frombuffer(data, np.uint8)).view(dtype).reshape(shape)
            for data, (shape, dtype) in zip(results, made, strict=True)
        ]


def flat(array: mx.array) -> tuple[bytes, tuple[int, ...], tuple[int, ...]]:
    """The bytes from an array's first number to its last, its shape, and its strides in numbers."""
    size = array.dtype.size
    found = np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)
    strides = tuple(stride // size for stride in found.strides)
    extent = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) + 1
    return ctypes.string_at(found.ctypes.data, extent * size), array.shape, strides
