"""What is systematically wrong with an output that is within the tolerance all the same."""

import torch

FACTOR = 0.005  # how far from 1 a factor has to be, beside what noise explains
SIGMAS = 6
WIDEST = 5  # as many times as a factor is off from 1 may its elements differ from it
ERRORS = 64  # as many of one sign are no accident
SHARE = 0.25  # of all elements that differ, below which signs may be those of a few roundings


def bias(output: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Return a sentence if the output is the reference times a constant, or errs to one side."""
    got = output.double().flatten()
    want = expected.double().flatten()
    growth = got.abs() - want.abs()
    return (
        scaled(got, want)
        or one_sided(got - want, "above", "below")
        or one_sided(growth, "further from zero than", "closer to zero than")
    )


def scaled(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """Return a sentence if the median of got / want, over elements that are not small, is not 1.

    A few wrong elements do not move a median. Its standard error follows from the ratios' own
    spread.
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
    if abs(factor - 1) <= max(FACTOR, SIGMAS * doubt, spread / WIDEST):
        return None
    return f"it passes, but the output is {factor:.4g} times the reference"


def one_sided(errors: torch.Tensor, if_positive: str, if_negative: str) -> str | None:
    """Return a sentence if many errors have one sign, which says where the output is: on which
    side of the reference.
    """
    positive = int((errors > 0).sum())
    negative = int((errors < 0).sum())
    count = positive + negative
    has_both_signs = positive and negative
    if has_both_signs or count < max(ERRORS, SHARE * len(errors)):
        return None

    side = if_positive if positive else if_negative
    return f"it passes, but all {count} errors have one sign: the output is {side} the reference"
