"""The kernels on a real GPU, against their twins: what the host runner cannot tell.

Skipped where the kernels' own trial says that this GPU cannot be trusted, as the paravirtual ones
of hosted Macs: edgekv uses the twins there.
"""

import pytest

from edgekv.metal import attention
from edgekv.metal.device import has_metal
from tests.metal.cases import make_case, make_rows_case
from tests.metal.conftest import forget
from tests.metal.test_close import assert_same_bits, blocks, extreme, halfway, ordinary
from tests.metal.test_decode import FEW, PLACES

pytestmark = pytest.mark.skipif(not has_metal(), reason="there is no Metal here")
SLACK = 5e-3
"""For products of the twin that a GPU may round to fewer bits than fp32 has."""


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    """Cases are computed by the twins, whatever is chosen, once the kernels passed their trial."""
    forget()
    if not attention.choice().kernels:
        pytest.skip(attention.choice().reason)
    forget()
    monkeypatch.setenv("EDGEKV_KERNELS", "off")
    yield
    forget()


@pytest.mark.parametrize("template", FEW, ids=str)
def test_kernel_equals_twin(template):
    for place in PLACES:
        make_case(template, *place).check(SLACK)


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_several_tokens_each_see_their_own_past(rows):
    make_rows_case(FEW[0], 458, rows).check(SLACK)


def test_a_long_window_is_split_and_merged():
    make_case(FEW[0], 5000, "pinned", window=4096).check(SLACK)


@pytest.mark.parametrize("draw", [ordinary, extreme, halfway])
@pytest.mark.parametrize("template", FEW, ids=str)
def test_every_bit_of_a_closed_block_is_the_twins(template, draw):
    assert_same_bits(*blocks(draw, template.head_dim), template)
