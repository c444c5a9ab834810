"""A token's bits in any batch, for every solution whose manifest says in which:
facts.batch_invariant.

It is "every T", or the ranges of T in which they are the same, "1-4, 5-1536, 1537-"; "no" promises
nothing. What follows a semicolon, or a colon after "no", is for readers.
"""

import math
import re

import pytest
import torch
from flashinfer_bench.compile import BuilderRegistry
from layer_inputs import DEVICE, arguments
from moebench.operators import catalogue
from moebench.packing import eligibility, manifest, pack

SMALL, MORE_SMALL = ("small-one-group",), ("small", "small-renorm-routed")
FULL = ("full", "minimax-m2", "qwen3-next", "deepseek-v3-ep8-routed")
MOST = {"cpu": 7, "cuda": 16384}[DEVICE]  # tokens
WATCHED = 4  # tokens, the first ones drawn
BATCHES = {"cpu": 2, "cuda": 24}[DEVICE]  # of a range


def ranges(solution):
    """(first, last T) of each range that the manifest promises."""
    fact = manifest.read_manifest(solution).facts.get("batch_invariant", "no")
    if fact.startswith("every T"):
        return [(1, MOST)]
    found = [(int(first), int(last or MOST)) for first, last in re.findall(r"(\d+)-(\d*)", fact)]
    assert found or fact.partition(":")[0] == "no", f"{solution}: batch_invariant: {fact}"
    return [(first, min(last, MOST)) for first, last in found if first < MOST]


def cases(geometries, *marks):
    served = {
        name: manifest.read_manifest(name).definitions
        for name in manifest.solution_names()
        if ranges(name)
    }
    return [
        pytest.param(name, key, marks=marks)
        for key in geometries
        for name in served
        if key in served[name]
    ]


def batch(definition, pool, chosen):
    """The pool's arguments for these of its tokens."""
    found = dict(pool)
    for name, spec in definition.inputs.items():
        if spec.shape and "seq_len" in spec.shape:
            found[name] = pool[name].index_select(
                spec.shape.index("seq_len"), chosen.to(pool[name].device)
            )
    return found | {"output": torch.full_like(pool["output"][: len(chosen)], torch.nan)}


def neighbours(number, count, generator):
    """Tokens of the pool: different ones, or the same few over and over, so that some experts have
    many rows.
    """
    kinds = MOST - WATCHED if number % 2 else 2
    return WATCHED + torch.randperm(max(count, kinds), generator=generator)[:count] % kinds


CASES = [*cases(SMALL), *cases(MORE_SMALL, pytest.mark.slow), *cases(FULL, pytest.mark.gpu)]


@pytest.mark.parametrize(("solution", "geometry"), CASES)
def test_bits_do_not_depend_on_the_batch(solution, geometry):
    """Another answer to the same prompt because of what others asked."""
    packed = pack.pack(solution)[geometry]
    if reason := eligibility.why_skipped(packed, eligibility.here()):
        pytest.skip(f"{solution} {reason}")
    definition, pool = catalogue.definition(geometry), arguments(geometry, MOST, offset=8)
    layer = BuilderRegistry.get_instance().build(definition, packed)
    generator = torch.Generator().manual_seed(0)
    for first, last in ranges(solution):
        spread = torch.rand(BATCHES, generator=generator) * math.log(
            last / first
        )  # kernels change where T is small
        known = {}
        for number, tokens in enumerate([first, last, *(first * spread.exp()).int().tolist()]):
            watched = torch.randperm(WATCHED, generator=generator)[:tokens]
            chosen = torch.cat([watched, neighbours(number, tokens - len(watched), generator)])
            order = torch.randperm(tokens, generator=generator)
            given = batch(definition, pool, chosen[order])
            layer(*given.values())
            for at, token in enumerate(chosen[order].tolist()):
                if token < WATCHED:
                    bits = given["output"][at].view(torch.int16).cpu()
                    assert torch.equal(bits, known.setdefault(token, bits)), (
                        f"T={tokens}, token {at}"
                    )
