"""Say what is wrong with an output, in sentences for the author of the solution:

    largest absolute error 3.5 at (0, 17): got 1.5, want 5
    largest relative error 12 at (3, 2): got 0.26, want 0.02
    wrong: 3 of 16 tokens (2 to 9), all 7168 columns; first at (token, column) = (2, 0)
    gemm1_weights_scale is not applied

The last line is the likely mistake. It is found by calling the reference with inputs that make the
same mistake, ones in the place of the scales for instance, and comparing its output.

isolation/comparison.py calls `diagnose` on a solution's worst output.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from flashinfer_bench import Definition

from moebench.judging import fib
from moebench.judging.calling import call
from moebench.judging.tolerances import Tolerance

NEVER_WRITTEN = (
    "every element is NaN, as before the call: run() has to write into `output`, "
    "and not to return one"
)
NO_LOCAL_EXPERT = (
    "those rows must be zero (no local expert): they have to be written, too"
)
# begins the line that says which tokens and columns are wrong
WRONG_ELEMENTS = "wrong: "
ALIKE = 0.99  # the least cosine of two outputs that differ by a factor alone
HALVES = (
    "gemm1_weights",
    "gemm1_weights_scale",
)  # gate's rows are one half of each, up's the other


def diagnose(
    definition: Definition,
    inputs: list,
    place: int,
    output: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
) -> list[str]:
    """Return sentences on a wrong output, and the likely mistake if one explains it.

    place: the output's number among the definition's. inputs, output, expected: of one call.
    """
    by_name = dict(zip(definition.inputs, inputs, strict=True))
    lines = sentences(output, expected, tolerance, by_name)
    has_no_cause = lines[-1].startswith(WRONG_ELEMENTS)
    if has_no_cause:
        mistake = likely_mistake(definition, by_name, place, output, tolerance)
        if mistake:
            lines.append(mistake)

    if len(definition.outputs) > 1:
        lines.insert(0, f"of the output {list(definition.outputs)[place]}:")
    return lines


def sentences(
    output: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    inputs: Mapping[str, object],
) -> list[str]:
    """Return how far a wrong output [T, C] is off and where, and as last line a cause that can be
    told from the output alone, if it has one.

    An output of another rank is flattened after its first axis. It has the shape and dtype of what
    is expected, at least one element, and NaN where nothing was written. inputs: by name.
    """
    if output.isnan().all():
        return [NEVER_WRITTEN]

    got = as_matrix(output)
    want = as_matrix(expected)
    if not got.isfinite().all():
        return not_finite_sentences(got, want)

    lines = distance_sentences(got, want, tolerance)
    if not got.any():
        return [*lines, "every element is zero"]
    cause = scale_sentence(got, want, tolerance, inputs)
    return [*lines, cause] if cause else lines


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as [T, C] float32."""
    wide = torch.atleast_1d(tensor.float())
    return wide.reshape(len(wide), -1)


def exceeds(
    got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance
) -> torch.Tensor:
    """Return a mask of the elements that FIB calls wrong."""
    error = (got - want).abs()
    relative = error / (want.abs() + 1e-8)
    return (error > tolerance.atol) & (relative > tolerance.rtol)


def span(mask: torch.Tensor, what: str) -> str:
    """Return '3 of 16 tokens (2 to 9)' of a mask with 3 of 16 set; or 'all 16 tokens'."""
    places = mask.nonzero().flatten().tolist()
    if len(places) == len(mask):
        return f"all {len(mask)} {what}"

    count = f"{len(places)} of {len(mask)} {what}"
    if len(places) == 1:
        return f"{count} ({places[0]})"
    return f"{count} ({places[0]} to {places[-1]})"


def spans(mask: torch.Tensor) -> str:
    """Return '3 of 16 tokens (2 to 9), all 256 columns' with a set element in a mask [T, C]."""
    return f"{span(mask.any(1), 'tokens')}, {span(mask.any(0), 'columns')}"


def not_finite_sentences(got: torch.Tensor, want: torch.Tensor) -> list[str]:
    """Return where an output has NaN or infinite values, and why that may be."""
    bad = ~got.isfinite()
    place = first_place(bad)
    what = "NaN" if got[place].isnan() else "infinite"
    lines = [f"{what} in {spans(bad)}; first at {place}"]

    whole_rows = got.isnan().all(1)
    if whole_rows.any() and not want[whole_rows].any():
        lines.append(NO_LOCAL_EXPERT)
    return lines


def first_place(mask: torch.Tensor) -> tuple[int, int]:
    """Return (token, column) of the first element of a mask [T, C] that is set."""
    token, column = mask.nonzero()[0].tolist()
    return token, column


def distance_sentences(
    got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance
) -> list[str]:
    """Return sentences on the largest errors, and on which tokens and columns are wrong."""
    error = (got - want).abs()
    relative = torch.where(want == 0, 0, error / want.abs())
    lines = [
        largest_error("absolute", error, got, want),
        largest_error("relative", relative, got, want),
    ]

    bad = exceeds(got, want, tolerance)
    if not bad.any():
        return lines

    # a few elements of every token may be wrong: those of the tokens that fail say more
    failing_tokens = bad.float().mean(1) > 1 - tolerance.ratio
    if failing_tokens.any():
        bad &= failing_tokens[:, None]
    lines.append(
        f"{WRONG_ELEMENTS}{spans(bad)}; first at (token, column) = {first_place(bad)}"
    )
    return lines


def largest_error(
    what: str, errors: torch.Tensor, got: torch.Tensor, want: torch.Tensor
) -> str:
    """Return a sentence on the largest of some errors [T, C]."""
    place = divmod(int(errors.argmax()), errors.shape[1])
    shown = f"got {got[place]:.5g}, want {want[place]:.5g}"
    return f"largest {what} error {errors[place]:.4g} at {place}: {shown}"


def scale_sentence(
    got: torch.Tensor,
    want: torch.Tensor,
    tolerance: Tolerance,
    inputs: Mapping[str, object],
) -> str | None:
    """Return by which factor an output is wrong, and which scalar input explains that; None where
    it is not right after division by a factor.
    """
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), want.flatten(), 0)
    if cosine <= ALIKE:
        return None
    factor = float((got * want).sum() / (want * want).sum())
    bad = exceeds(got / factor, want, tolerance)
    if bad.float().mean() > 1 - tolerance.ratio:
        return None

    sentence = f"the output is {factor:.4g} times the reference"
    why = scale_cause(factor, inputs)
    return f"{sentence}: {why}" if why else sentence


def scale_cause(factor: float, inputs: Mapping[str, object]) -> str | None:
    """Return 'routed_scaling_factor = 2.5 is forgotten', or "applied twice"; None if no scalar
    input explains the factor.
    """
    for name, value in inputs.items():
        if not isinstance(value, float) or value in (0, 1):
            continue
        if math.isclose(factor, 1 / value, rel_tol=0.02):
            return f"{name} = {value:g} is forgotten"
        if math.isclose(factor, value, rel_tol=0.02):
            return f"{name} = {value:g} is applied twice"
    return None


def mistakes(inputs: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each mistake that is looked for: a sentence, and the inputs, by name, with which the
    reference makes it.
    """
    for name, value in inputs.items():
        if name.endswith("_scale") and is_floating(value):
            yield f"{name} is not applied", {name: torch.ones_like(value)}
        elif name == "routing_bias":
            yield f"{name} is not added", {name: torch.zeros_like(value)}
        elif name == "local_expert_offset" and value:
            yield f"{name} is taken as 0", {name: 0}

    halves = [name for name in HALVES if name in inputs]
    if halves:
        swapped = {name: with_halves_swapped(inputs[name]) for name in halves}
        yield "the halves of gemm1, gate and up, are swapped", swapped


def is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def with_halves_swapped(weights: torch.Tensor) -> torch.Tensor:
    """Return [experts, rows, columns] with the halves of the rows swapped."""
    as_bytes = weights.view(torch.uint8)
    return as_bytes.roll(weights.shape[1] // 2, 1).view(weights.dtype)


def likely_mistake(
    definition: Definition,
    inputs: Mapping[str, object],
    place: int,
    output: torch.Tensor,
    tolerance: Tolerance,
) -> str | None:
    """Return the mistake with which the reference gives this output, or None.

    The reference is called once for each mistake.
    """
    reference = fib.build_reference(definition)
    best_share = 0.0
    best_mistake = None
    for mistake, changed in mistakes(inputs):
        wrong_inputs = {**inputs, **changed}
        mistaken = call(
            definition, reference, [*wrong_inputs.values()], str(output.device)
        )[place]
        if not mistaken.isfinite().all():
            continue

        bad = exceeds(output.float(), mistaken.float(), tolerance)
        share = 1 - float(bad.float().mean())
        if share > best_share:
            best_share = share
            best_mistake = mistake
    return best_mistake if best_share >= tolerance.ratio else None
