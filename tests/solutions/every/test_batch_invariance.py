"""A token's bits in any batch, for every solution whose manifest says in which:
facts.batch_invariant.

It is "every T", or the ranges of T in which they are the same, "1-4, 5-1536, 1537-"; "no" promises
nothing. What follows a semicolon, or a colon after "no", is for readers.
"""

import math
import re

import pytest
import torch
from every_solution import OUTPUT, assert_same_bits, serving
from layer_inputs import DEVICE
from layer_inputs import arguments as layer_arguments
from moebench.operators import catalogue
from moebench.packing import manifest

FULL = ("full", "minimax-m2", "qwen3-next", "deepseek-v3-ep8-routed")
MOST = {"cpu": 7, "cuda": 16384}[DEVICE]  # tokens
WATCHED = 4  # tokens, the first ones of the pool
BATCHES = {"cpu": 2, "cuda": 24}[DEVICE]  # of a range


def promised_ranges(solution):
    """Return (first, last T) of each range that the manifest promises."""
    fact = manifest.read_manifest(solution).facts.get("batch_invariant", "no")
    if fact.startswith("every T"):
        return [(1, MOST)]

    promised = re.findall(r"(\d+)-(\d*)", fact)
    if not promised:
        assert fact.partition(":")[0] == "no", fact
    ranges = []
    for first, last in promised:
        if int(first) < MOST:
            end = int(last or MOST)
            ranges.append((int(first), min(end, MOST)))
    return ranges


class Batches:
    """Batches of tokens from a pool, in which the watched ones lie among others.

    pool: the layer's arguments for MOST tokens.
    """

    def __init__(self, layer_key):
        self.inputs = catalogue.definition(layer_key).inputs
        self.pool = layer_arguments(layer_key, MOST, offset=8)
        self.generator = torch.Generator().manual_seed(0)

    def token_counts(self, first, last):
        """Return both ends of a range and some counts inside, more of the small ones, where
        kernels change.
        """
        share = torch.rand(BATCHES, generator=self.generator)
        inside = first * (share * math.log(last / first)).exp()
        return [first, last, *inside.int().tolist()]

    def random_order(self, count):
        return torch.randperm(count, generator=self.generator)

    def tokens(self, count, different):
        """Return [count] numbers of tokens: watched ones, and others or the same two over and over,
        so that some experts have many rows.
        """
        watched = self.random_order(WATCHED)[:count]
        num_others = count - len(watched)
        num_kinds = MOST - WATCHED if different else 2
        order = self.random_order(max(num_others, num_kinds))
        others = WATCHED + order[:num_others] % num_kinds
        tokens = torch.cat([watched, others])
        return tokens[self.random_order(count)]

    def arguments(self, tokens):
        """Return the layer's arguments for these tokens of the pool."""
        arguments = dict(self.pool)
        index = tokens.to(DEVICE)
        for name, spec in self.inputs.items():
            if spec.shape and "seq_len" in spec.shape:
                axis = spec.shape.index("seq_len")
                arguments[name] = self.pool[name].index_select(axis, index)
        output = self.pool[OUTPUT][: len(tokens)]
        arguments[OUTPUT] = torch.full_like(output, torch.nan)
        return arguments


def check_bits(layer, solution, layer_key):
    ranges = promised_ranges(solution)
    if not ranges:
        pytest.skip(f"{solution} does not promise it")

    batches = Batches(layer_key)
    for first, last in ranges:
        expected = {}  # token -> its bits
        for number, count in enumerate(batches.token_counts(first, last)):
            is_odd = number % 2 == 1
            tokens = batches.tokens(count, different=is_odd)
            check_batch(layer, batches.arguments(tokens), tokens.tolist(), expected)


def check_batch(layer, arguments, tokens, expected):
    """Check the watched tokens of a batch against those that came before."""
    layer(*arguments.values())
    for row, token in enumerate(tokens):
        if token < WATCHED:
            bits = arguments[OUTPUT][row].clone()
            bits_before = expected.setdefault(token, bits)
            assert_same_bits(bits, bits_before, f"T={len(tokens)}")


@serving("small-one-group", *FULL)
def test_bits_do_not_depend_on_the_batch(layer, solution, layer_key):
    """Catches another answer to the same prompt because of what others asked."""
    check_bits(layer, solution, layer_key)


@pytest.mark.slow
@serving("small-mxfp4", "deepseek-v4-flash-ep8-mxfp4")
def test_bits_of_mxfp4_experts_do_not_depend_on_the_batch(layer, solution, layer_key):
    """Asked of those that promise it at every T: other ranges are of FP8 weights."""
    if promised_ranges(solution) != [(1, MOST)]:
        pytest.skip(f"{solution} does not promise it at every T")
    check_bits(layer, solution, layer_key)


@pytest.mark.slow
@serving("small-renorm-routed")
def test_bits_do_not_depend_on_the_batch_behind_a_router(layer, solution, layer_key):
    check_bits(layer, solution, layer_key)
