"""Find what is systematically wrong with an output that is within the tolerance all the same:

    it passes, but the output is 1.012 times the reference

isolation/comparison.py asks for the sentence `bias` of each output that passes.
"""

import torch

# A factor counts if it is further from 1 than each of: this much, as many of its standard errors,
# and a fifth of the spread of the elements' ratios.
FACTOR = 0.005
SIGMAS = 6
SPREADS = 0.2
# Signs count if so many errors, and so large a share of all elements, have the same one; of fewer
# elements a few roundings may be the cause.
ERRORS = 64
SHARE = 0.25


def bias(output: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Return a sentence if the output is the reference times a constant, or if all its errors are
    to one side; else None.
    """
    got = output.double().flatten()
    want = expected.double().flatten()
    growth = got.abs() - want.abs()
    return (
        scale_sentence(got, want)
        or sign_sentence(got - want, "above", "below")
        or sign_sentence(growth, "further from zero than", "closer to zero than")
    )


def scale_sentence(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """Return a sentence if the median of got / want, over elements that are not small, is not 1.

    A few wrong elements do not move a median. Its standard error follows from the spread of the
    ratios: 1.2533 times that of a mean of normal numbers, whose deviation is 1.4826 times the
    median distance from the median.
    """
    root_mean_square = want.square().mean().sqrt()
    large = want.abs() > 0.5 * root_mean_square
    if int(large.sum()) < ERRORS:
        return None

    ratios = got[large] / want[large]
    factor = float(ratios.median())
    distances = (ratios - factor).abs()
    spread = 1.4826 * float(distances.median())
    doubt = 1.2533 * spread / len(ratios) ** 0.5
    if abs(factor - 1) <= max(FACTOR, SIGMAS * doubt, SPREADS * spread):
        return None
    return f"it passes, but the output is {factor:.4g} times the reference"


def sign_sentence(
    errors: torch.Tensor, if_positive: str, if_negative: str
) -> str | None:
    """Return a sentence if many errors are there and all have one sign.

    if_positive, if_negative: what the sentence says of the output, before "the reference".
    """
    positive = int((errors > 0).sum())
    negative = int((errors < 0).sum())
    count = positive + negative
    has_both_signs = positive and negative
    if has_both_signs or count < max(ERRORS, SHARE * len(errors)):
        return None

    side = if_positive if positive else if_negative
    return f"it passes, but all {count} errors have one sign: the output is {side} the reference"
