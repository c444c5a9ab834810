"""MXFP4 weights of the kernels for many tokens: every value at every place of a row's window, and
the order of K. The sources run on the host.
"""

import subprocess

import host_program
import pytest
import torch
from moebench.operators.fp8.mxfp4 import E2M1

# mxfp4_values.cuh's window: kExponentsBelow and kExponents
BELOW = 8
EXPONENTS = 15

pytestmark = pytest.mark.xdist_group("hopper mxfp4")  # one worker builds the program


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mxfp4")
    program = host_program.build_packed(
        "hopper_fused", "small-mxfp4", "hopper_mxfp4.cc", folder
    )

    def output_of(question):
        done = subprocess.run([program, question], check=True, capture_output=True)
        return torch.frombuffer(bytearray(done.stdout), dtype=torch.uint8)

    return output_of


def test_every_value_is_exact_at_every_place(ask):
    codes_of_fp8 = ask("values").view(torch.float8_e4m3fn)
    values = codes_of_fp8.float().view(EXPONENTS, 1 << 16, 8)

    pairs = torch.arange(1 << 16)
    codes = [pairs >> 4 * i & 15 for i in range(4)]
    # a pair, then the pair with all bits flipped
    codes += [15 - code for code in codes]
    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
    expected = table[torch.stack(codes, -1)]
    powers = torch.exp2(torch.arange(EXPONENTS) - BELOW)
    assert torch.equal(values, expected * powers[:, None, None])


def test_a_lanes_group_is_where_wgmma_reads_it(ask):
    """A lane has group `lane` of a K block: eight values for each wgmma, four in either half of its
    32.
    """
    position = ask("order").long().view(4, 4, 2, 4)  # lane, wgmma, half, value
    read = torch.arange(128).view(4, 2, 4, 4)  # wgmma, half, lane, value
    assert torch.equal(position, read.permute(2, 0, 1, 3))
