import struct

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekv.errors import DamagedFile, EdgekvError, ModelNotFound, UnsupportedModel
from edgekv.loading import open_checkpoint, read_config
from edgekv.loading.gguf import TENSOR_TYPES, read_gguf
from tests.loading.files import write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", kind="Q4_1")


def every_metadata_type(writer):
    writer.add_uint8("x.u8", 200)
    writer.add_int8("x.i8", -5)
    writer.add_uint16("x.u16", 60000)
    writer.add_int16("x.i16", -300)
    writer.add_uint32("x.u32", 1 << 31)
    writer.add_int32("x.i32", -7)
    writer.add_uint64("x.u64", 1 << 63)
    writer.add_int64("x.i64", -(1 << 62))
    writer.add_float32("x.f32", 0.5)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_string("x.string", "naïve 日本")
    writer.add_array("x.ints", [1, -2, 3])
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.strings", ["a", "", "ß"])


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_metadata_and_tensors_are_those_the_gguf_package_reads(tmp_path):
    path = write_gguf(tmp_path / "all.gguf", kind="Q4_1", extra=every_metadata_type)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == expected.keys()
    for key, value in expected.items():
        near = pytest.approx(value) if isinstance(value, float) else value
        assert plain(ours.metadata[key]) == near
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(tensor.shape[::-1].tolist())
        assert found.type.name == tensor.tensor_type.name
        assert found.data.tobytes() == tensor.data.tobytes()


def test_tensor_types_are_those_of_the_gguf_package():
    for number, kind in TENSOR_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (theirs.name, *gguf.GGML_QUANT_SIZES[theirs]) == kind


def test_single_floats_are_read_as_the_decimals_they_were_written_from(tiny):
    assert read_gguf(tiny).metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5


def test_version_2_is_read_like_version_3(tiny, tmp_path):
    raw = bytearray(tiny.read_bytes())
    raw[4:8] = struct.pack("<I", 2)
    old = tmp_path / "v2.gguf"
    old.write_bytes(raw)
    assert read_gguf(old).tensors.keys() == read_gguf(tiny).tensors.keys()


def header(version=3, tensors=0, pairs=0, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, pairs)


def string(text):
    return struct.pack("<Q", len(text)) + text


def tensor(name=b"t", dims=(32,), kind=0, offset=0):
    shape = b"".join(struct.pack("<Q", n) for n in dims)
    return string(name) + struct.pack("<I", len(dims)) + shape + struct.pack("<IQ", kind, offset)


def pair(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


DAMAGED = {
    "empty": (b"", "is empty"),
    "three bytes": (b"GGU", "ends inside the header"),
    "another format": (header(magic=b"PK\x03\x04"), "not b'GGUF'"),
    "cut header": (header()[:20], "ends inside"),
    "too many tensors": (header(tensors=1 << 40), "number of tensors"),
    "too many pairs": (header(pairs=1 << 40), "number of metadata pairs"),
    "pairs missing": (header(pairs=1), "ends inside"),
    "key longer than the file": (header(pairs=1) + struct.pack("<Q", 60000), "a metadata key"),
    "huge key": (header(pairs=1) + struct.pack("<Q", 1 << 63), "a metadata key"),
    "unknown value type": (header(pairs=1) + pair(b"k", 99, b""), "unknown type 99"),
    "huge array": (
        header(pairs=1) + pair(b"k", 9, struct.pack("<IQ", 0, 1 << 60)),
        "length of 'k'",
    ),
    "array past the end": (
        header(pairs=1) + pair(b"k", 9, struct.pack("<IQ", 4, 1000)),
        "ends inside 'k'",
    ),
    "strings past the end": (
        header(pairs=1) + pair(b"k", 9, struct.pack("<IQ", 8, 1000) + string(b"abc")),
        "ends inside 'k'",
    ),
    "nested array": (
        header(pairs=1) + pair(b"k", 9, struct.pack("<IQ", 9, 1)),
        "unknown type 9",
    ),
    "key twice": (header(pairs=2) + 2 * pair(b"k", 0, b"\1"), "'k' twice"),
    "odd alignment": (
        header(pairs=1) + pair(b"general.alignment", 4, struct.pack("<I", 7)),
        "general.alignment is 7",
    ),
    "no alignment": (
        header(pairs=1) + pair(b"general.alignment", 4, struct.pack("<I", 0)),
        "general.alignment is 0",
    ),
    "no dimensions": (header(tensors=1) + tensor(dims=()), "0 dimensions"),
    "five dimensions": (header(tensors=1) + tensor(dims=(1,) * 5), "5 dimensions"),
    "an empty dimension": (header(tensors=1) + tensor(dims=(0,)), "the shape (0,)"),
    "a huge dimension": (header(tensors=1) + tensor(dims=(1 << 50,)), "dimension of 't'"),
    "overflowing shape": (
        header(tensors=1) + tensor(dims=(1 << 39, 1 << 39, 1 << 39)) + bytes(256),
        "lies at bytes",
    ),
    "part of a block": (header(tensors=1) + tensor(dims=(33,), kind=2), "rows of 33"),
    "data missing": (header(tensors=1) + tensor(), "lies at bytes"),
    "offset past the end": (
        header(tensors=1) + tensor(offset=1 << 20) + bytes(256),
        "offset of 't'",
    ),
    "unaligned offset": (header(tensors=1) + tensor(offset=4) + bytes(512), "aligned to 32"),
    "tensor twice": (header(tensors=2) + 2 * tensor() + bytes(512), "tensor 't' twice"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_with_the_file(name, tmp_path):
    raw, message = DAMAGED[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with pytest.raises(DamagedFile) as fault:
        open_checkpoint(path)
    text = str(fault.value)
    assert message in text and str(path) in text and "\n" not in text


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (header(version=1), "version 1"),
        (header(version=4), "version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(tensors=1) + tensor(kind=77), "unknown type 77"),
        (header(pairs=1) + pair(b"split.count", 2, struct.pack("<H", 3)), "one of 3 parts"),
    ],
)
def test_what_is_whole_but_not_supported_says_so(raw, message, tmp_path):
    path = tmp_path / "other.gguf"
    path.write_bytes(raw)
    with pytest.raises(UnsupportedModel, match=message):
        read_gguf(path)


@pytest.mark.parametrize("read", [open_checkpoint, read_config])
def test_a_missing_file_is_a_missing_model(read, tmp_path):
    with pytest.raises(ModelNotFound, match="no such file"):
        read(tmp_path / "none.gguf")


@pytest.mark.parametrize("read", [open_checkpoint, read_config])
def test_a_path_that_cannot_be_looked_at_is_one_clear_line(read, tmp_path):
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    for odd in (loop, tmp_path / ("x" * 5000), tmp_path / "a\0b", tmp_path / "f" / "g"):
        (tmp_path / "f").touch()
        with pytest.raises(ModelNotFound):
            read(odd)


def test_every_truncation_is_noticed(tiny, tmp_path):
    raw = tiny.read_bytes()
    path = tmp_path / "cut.gguf"
    rng = np.random.default_rng(0)
    for length in [*rng.integers(1, len(raw), 60).tolist(), len(raw) - 1]:
        path.write_bytes(raw[:length])
        with pytest.raises(DamagedFile):
            open_checkpoint(path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_flipped_bytes_raise_nothing_but_our_own_errors(tiny, tmp_path, data):
    raw = bytearray(tiny.read_bytes())
    # Metadata and the tensor table are where a byte means something.
    places = st.integers(0, min(len(raw), 12000) - 1)
    changes = st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=8)
    for at, value in data.draw(changes):
        raw[at] = value
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    try:
        checkpoint = open_checkpoint(path)
    except EdgekvError as fault:
        assert "\n" not in str(fault)
    else:
        checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("the end", add_special=True))
