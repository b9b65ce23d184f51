import pytest

from edgekv.cli.stored import Stored
from edgekv.sessions import Session

PLAIN = {"model": "m", "window": 64, "n_sink": 4, "k_bits": 8, "v_bits": 4, "kv_policy": None}
BY_LAYER = PLAIN | {"kv_policy": "bits.toml"}


@pytest.mark.parametrize(
    ("begun", "given", "expected"),
    [
        (PLAIN, {}, {"k_bits": 8, "v_bits": 4}),
        (PLAIN, {"kv_bits": 2}, {"kv_bits": 2}),
        (PLAIN, {"v_bits": 2}, {"k_bits": 8, "v_bits": 2}),
        (PLAIN, {"kv_policy": "x"}, {"kv_policy": "x"}),
        (BY_LAYER, {}, {"kv_policy": "bits.toml"}),
        (BY_LAYER, {"kv_bits": 3}, {"kv_bits": 3}),
        (BY_LAYER, {"k_bits": 3}, {"k_bits": 3, "v_bits": 4}),
    ],
)
def test_a_session_is_gone_on_with_as_it_began_but_for_what_is_given(begun, given, expected):
    session = Session("0" * 32, "s", "m", begun, 0, 0, 1)
    settings = Stored(None, "s", session, persist=True).settings(given | {"seed": None})
    assert settings == {"model": "m", "window": 64, "n_sink": 4} | expected
