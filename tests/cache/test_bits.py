import json

import pytest

from edgekv.cache.bits import MAX_FILE, read_bits, with_bits, write_bits
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.errors import EdgekvError, InvalidValue

BITS = [(8, 2), (4, 4), (16, 3)]


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "bits.toml"
    write_bits(path, BITS, "a model\n4.5 bits")
    assert path.read_text().startswith("# a model\n# 4.5 bits\nk_bits = [8, 4, 16]\n")
    assert read_bits(path, 3) == BITS


def test_json_and_one_number_for_all_layers(tmp_path):
    path = tmp_path / "bits.json"
    path.write_text(json.dumps({"k_bits": 4, "v_bits": [2, 3]}))
    assert read_bits(path, 2) == [(4, 2), (4, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k_bits = 4", "v_bits: expected one of 2, 3, 4, 8, 16, got None"),
        ("k_bits = 4\nv_bits = 5", "v_bits: expected one of .*, got 5"),
        ("k_bits = true\nv_bits = 4", "k_bits: expected one of .*, got True"),
        ("k_bits = [4, 4]\nv_bits = 4", "k_bits: has 2 numbers, but the model has 3 layers"),
        ("k_bits = [4, 4, '4']\nv_bits = 4", "k_bits: expected one of .*, got '4'"),
        ("k_bits = [[4], 4, 4]\nv_bits = 4", r"k_bits: expected one of .*, got \[4\]"),
        ("kbits = 4", "unknown key 'kbits'; known are k_bits and v_bits"),
        ("not toml", "cannot be read as bits by layer"),
        ("#" * (MAX_FILE + 1), "more than 65,536 bytes"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, text, message):
    path = tmp_path / "bits.toml"
    path.write_text(text)
    with pytest.raises(InvalidValue, match=message):
        read_bits(path, 3)


@pytest.mark.parametrize("text", ["[" * 20_000, "[1]", "3", "null", '{"k_bits": 1e999}'])
def test_what_is_no_such_json_is_refused(tmp_path, text):
    path = tmp_path / "bits.json"
    path.write_text(text)
    with pytest.raises(InvalidValue):
        read_bits(path, 3)


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path):
    with pytest.raises(InvalidValue, match="none.toml: cannot be read: No such file"):
        read_bits(tmp_path / "none.toml", 3)
    with pytest.raises(EdgekvError, match="cannot write"):
        write_bits(tmp_path / "none" / "bits.toml", BITS, "")


def test_a_policy_takes_the_bits_of_each_layer():
    policy = with_bits(CachePolicy(512, (LayerPolicy(3, 64),) * 3), BITS)
    assert [(x.k_bits, x.v_bits) for x in policy.layers] == BITS
    assert policy.k_bits == pytest.approx(28 / 3) and policy.v_bits == 3
    assert (policy.window, policy.n_sink) == (512, 4)
