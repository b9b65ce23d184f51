import pytest

from edgekv import catalog
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.traffic import close_nbytes, decode_nbytes, merge_nbytes, token_nbytes
from edgekv.errors import InvalidValue
from edgekv.hardware import GB_PER_S, predict

LAYER = LayerPolicy(3, 64)


def test_decoding_moves_the_query_the_output_and_what_is_in_reach():
    # A head's block is 64 * 64 * 2 numbers of 4 bits, and scale and zero for 64 + 64 rows.
    block = 3 * (64 * 64 + (64 + 64) * 4)
    assert decode_nbytes(LAYER, 9, 2, closed=0, fresh=0) == 2 * 9 * 64 * 2
    assert decode_nbytes(LAYER, 9, 4, closed=0, fresh=0) == 2 * 9 * 64 * 4
    one = decode_nbytes(LAYER, 9, 2, 1, 0) - decode_nbytes(LAYER, 9, 2, 0, 0)
    assert one == block
    fresh = decode_nbytes(LAYER, 9, 2, 0, 5) - decode_nbytes(LAYER, 9, 2, 0, 0)
    assert fresh == 5 * 3 * 64 * 2 * 2
    assert close_nbytes(LAYER) == block + 64 * 3 * 64 * 2 * 2
    assert merge_nbytes(9, 64, 2, splits=3) == 9 * (3 * 66 * 4 + 64 * 2)


@pytest.mark.parametrize(
    ("window", "n_pinned", "closed", "fresh"),
    [(4096, 0, 63, 100), (4096, 128, 65, 100), (96, 0, 0, 100), (97, 0, 1, 100), (10, 0, 0, 14)],
)
def test_a_token_at_a_full_window_sees_blocks_and_fp16_tokens(window, n_pinned, closed, fresh):
    policy = CachePolicy(window, (LAYER,) * 2, 4, n_pinned)
    assert token_nbytes(policy, 9) == 2 * decode_nbytes(LAYER, 9, 2, closed, fresh)


def test_the_floor_is_bytes_over_bandwidth():
    policy = CachePolicy(4096, (LAYER,))
    found = predict("m4-MAX", policy, 9, 10**9)
    assert (found.chip, found.gb_per_s) == ("M4 Max", 546)
    assert found.kv_nbytes == token_nbytes(policy, 9)
    assert found.seconds == pytest.approx((10**9 + found.kv_nbytes) / 546e9)
    assert found.tokens_per_s == pytest.approx(1 / found.seconds)


def test_an_unknown_chip_is_refused_with_those_that_are_known():
    with pytest.raises(InvalidValue, match="M5 Max, got 'M9'"):
        predict("M9", CachePolicy(64, (LAYER,)), 9, 1)


@pytest.mark.parametrize("alias", sorted(catalog.builtin()))
def test_every_model_of_the_catalog_has_a_floor_on_every_chip(alias):
    entry = catalog.builtin()[alias]
    layer = LayerPolicy(entry.n_kv_heads, entry.head_dim)
    policy = CachePolicy(4096, (layer,) * entry.layers)
    floors = [predict(chip, policy, entry.n_heads, entry.weight_bytes) for chip in GB_PER_S]
    assert all(floor.kv_nbytes > 0 for floor in floors)
    assert floors[0].tokens_per_s < floors[-1].tokens_per_s < 20_000
