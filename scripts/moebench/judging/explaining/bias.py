"""What is systematically wrong with an output that is within the tolerance all the same."""

import torch

FACTOR = 0.005  # how far from 1 a factor has to be, beside what noise explains
SIGMAS = 6
WIDEST = 5  # as many times as a factor is off from 1 may its elements differ from it
ERRORS = 64  # as many of one sign are no accident
SHARE = 0.25  # of all elements that differ, below which signs may be those of a few roundings


def bias(output: torch.Tensor, expected: torch.Tensor) -> str | None:
    """Return a sentence if the output is the reference times a constant, or errs to one side."""
    x = output.double().flatten()
    y = expected.double().flatten()
    return scaled(x, y) or one_sided(x, y)


def scaled(x: torch.Tensor, y: torch.Tensor) -> str | None:
    """By the median of x / y over elements that are not small, which a few wrong ones do not move.

    Its standard error follows from the ratios' own spread.
    """
    large = y.abs() > 0.5 * y.square().mean().sqrt()
    if int(large.sum()) < ERRORS:
        return None

    ratios = x[large] / y[large]
    factor = float(ratios.median())
    spread = 1.4826 * float((ratios - factor).abs().median())
    doubt = 1.2533 * spread / len(ratios) ** 0.5
    deviation = abs(factor - 1)
    if deviation <= max(FACTOR, SIGMAS * doubt, spread / WIDEST):
        return None
    return f"it passes, but the output is {factor:.4g} times the reference"


def one_sided(x: torch.Tensor, y: torch.Tensor) -> str | None:
    """Whether all errors are above the reference, below it, towards zero or away from it."""
    sides = {
        ("above the reference", "below the reference"): x - y,
        ("further from zero than the reference", "closer to zero than the reference"): (
            x.abs() - y.abs()
        ),
    }
    for (positive, negative), errors in sides.items():
        above = int((errors > 0).sum())
        below = int((errors < 0).sum())
        if above + below < max(ERRORS, SHARE * len(x)):
            continue
        if below == 0:
            return sentence(above, positive)
        if above == 0:
            return sentence(below, negative)
    return None


def sentence(count: int, side: str) -> str:
    return f"it passes, but all {count} errors have one sign: the output is {side}"
