"""What is wrong with an output, in sentences for the person who wrote the solution."""

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
NO_LOCAL_EXPERT = "those rows must be zero (no local expert): they have to be written, too"
WRONG_ELEMENTS = "wrong: "  # begins the line on which tokens and columns are
ALIKE = 0.99  # cosine of two outputs that differ by a factor
HALVES = ("gemm1_weights", "gemm1_weights_scale")  # of which gate and up are a half each


def diagnose(
    definition: Definition,
    inputs: list,
    place: int,
    output: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
) -> list[str]:
    """Return `sentences` on a wrong output, the one at this place, and the mistake that explains it
    if one does.
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
    output: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, inputs: Mapping[str, object]
) -> list[str]:
    """Return how far a wrong output [T, C] is from what is expected, where, and as last line the
    common cause that it looks like, if it looks like one.

    Both have one shape and dtype, and at least one element. An output of another rank is flattened
    after its first axis. It is NaN where nothing was written. inputs: by name.
    """
    if output.isnan().all():
        return [NEVER_WRITTEN]

    got = as_matrix(output)
    want = as_matrix(expected)
    if not got.isfinite().all():
        return not_finite(got, want)

    lines = distances(got, want, tolerance)
    if not got.any():
        return [*lines, "every element is zero"]
    cause = scaled(got, want, tolerance, inputs)
    return [*lines, cause] if cause else lines


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return [T, C] float32."""
    wide = torch.atleast_1d(tensor.float())
    return wide.reshape(len(wide), -1)


def exceeds(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return as a mask which elements FIB calls wrong."""
    error = (got - want).abs()
    relative = error / (want.abs() + 1e-8)
    return (error > tolerance.atol) & (relative > tolerance.rtol)


def span(mask: torch.Tensor, what: str) -> str:
    """Return '3 of 16 tokens (2 to 9)', or 'all 16 tokens'."""
    places = mask.nonzero().flatten().tolist()
    if len(places) == len(mask):
        return f"all {len(mask)} {what}"

    count = f"{len(places)} of {len(mask)} {what}"
    if len(places) == 1:
        return f"{count} ({places[0]})"
    return f"{count} ({places[0]} to {places[-1]})"


def spans(mask: torch.Tensor) -> str:
    """Return which tokens and which columns of a mask [T, C] are set in any place."""
    return f"{span(mask.any(1), 'tokens')}, {span(mask.any(0), 'columns')}"


def not_finite(got: torch.Tensor, want: torch.Tensor) -> list[str]:
    bad = ~got.isfinite()
    place = first(bad)
    what = "NaN" if got[place].isnan() else "infinite"
    lines = [f"{what} in {spans(bad)}; first at {place}"]

    whole_rows = got.isnan().all(1)
    if whole_rows.any() and not want[whole_rows].any():
        lines.append(NO_LOCAL_EXPERT)
    return lines


def first(mask: torch.Tensor) -> tuple[int, int]:
    """Return (token, column) of the first element of a mask [T, C] that is set."""
    token, column = mask.nonzero()[0].tolist()
    return token, column


def distances(got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> list[str]:
    """Return the largest errors, and which tokens and columns are wrong."""
    error = (got - want).abs()
    relative = torch.where(want == 0, 0, error / want.abs())
    lines = [largest("absolute", error, got, want), largest("relative", relative, got, want)]

    bad = exceeds(got, want, tolerance)
    if not bad.any():
        return lines

    # a few elements of every token may be wrong: those of the tokens that fail say more
    failing_tokens = bad.float().mean(1) > 1 - tolerance.ratio
    if failing_tokens.any():
        bad &= failing_tokens[:, None]
    lines.append(f"{WRONG_ELEMENTS}{spans(bad)}; first at (token, column) = {first(bad)}")
    return lines


def largest(what: str, errors: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> str:
    place = divmod(int(errors.argmax()), errors.shape[1])
    error, value, right = (float(tensor[place]) for tensor in (errors, got, want))
    return f"largest {what} error {error:.4g} at {place}: got {value:.5g}, want {right:.5g}"


def scaled(
    got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance, inputs: Mapping[str, object]
) -> str | None:
    """Return by which factor the output is wrong, and which scalar input explains it; None where it
    is wrong in another way, too.
    """
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), want.flatten(), 0)
    if cosine <= ALIKE:
        return None
    factor = float((got * want).sum() / (want * want).sum())
    bad = exceeds(got / factor, want, tolerance)
    if bad.float().mean() > 1 - tolerance.ratio:
        return None

    sentence = f"the output is {factor:.4g} times the reference"
    why = why_scaled(factor, inputs)
    return f"{sentence}: {why}" if why else sentence


def why_scaled(factor: float, inputs: Mapping[str, object]) -> str | None:
    """Return which scalar input explains that an output is wrong by a factor, or None."""
    for name, value in inputs.items():
        if not isinstance(value, float) or value in (0, 1):
            continue
        if math.isclose(factor, 1 / value, rel_tol=0.02):
            return f"{name} = {value:g} is forgotten"
        if math.isclose(factor, value, rel_tol=0.02):
            return f"{name} = {value:g} is applied twice"
    return None


def mistakes(inputs: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (what is wrong, inputs in place of which the reference is wrong in that way)."""
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

    The reference is called once for each that is known.
    """
    reference = fib.build_reference(definition)
    best_share = 0.0
    best_mistake = None
    for mistake, changed in mistakes(inputs):
        wrong_inputs = {**inputs, **changed}
        mistaken = call(definition, reference, [*wrong_inputs.values()], str(output.device))[place]
        if not mistaken.isfinite().all():
            continue

        bad = exceeds(output.float(), mistaken.float(), tolerance)
        share = 1 - float(bad.float().mean())
        if share > best_share:
            best_share = share
            best_mistake = mistake
    return best_mistake if best_share >= tolerance.ratio else None
