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
ALIKE = 0.99  # cosine of two outputs that differ by a factor
HALVES = ("gemm1_weights", "gemm1_weights_scale")  # of which gate and up are a half each


def diagnose(
    full: Definition,
    inputs: list,
    place: int,
    output: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
) -> list[str]:
    """Return `sentences` on a wrong output, the one at this place, and the mistake that explains it
    if one does.
    """
    scalars = {
        name: value
        for name, value in zip(full.inputs, inputs, strict=True)
        if isinstance(value, float)
    }
    lines = sentences(output, expected, tolerance, scalars)
    if lines[-1].startswith("wrong"):
        mistake = likely_mistake(full, inputs, place, output, tolerance)
        lines += [mistake] if mistake else []

    if len(full.outputs) > 1:
        lines.insert(0, f"of the output {list(full.outputs)[place]}:")
    return lines


def sentences(
    output: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    factors: Mapping[str, float] | None = None,
) -> list[str]:
    """Return how far a wrong output [T, C] is from what is expected, where, and the common cause
    that it looks like.

    An output of another rank is flattened after its first axis. It is NaN where nothing was
    written. factors: the scalar inputs by name.
    """
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        return [f"the output is {kind(output)}, want {kind(expected)}"]
    if output.numel() and output.isnan().all():
        return [NEVER_WRITTEN]

    x = as_matrix(output)
    y = as_matrix(expected)
    if not x.isfinite().all():
        return not_finite(x, y)

    lines = distances(x, y, tolerance)
    cause = scaled(x, y, tolerance, factors or {}) if x.any() else "every element is zero"
    return [*lines, cause] if cause else lines


def kind(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return [T, C] float32."""
    wide = tensor.float()
    return wide.flatten(1) if wide.dim() > 1 else wide.reshape(-1, 1)


def exceeds(x: torch.Tensor, y: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return [T, C] bool: which elements FIB calls wrong."""
    error = (x - y).abs()
    return (error > tolerance.atol) & (error / (y.abs() + 1e-8) > tolerance.rtol)


def span(mask: torch.Tensor, what: str) -> str:
    """Return '3 of 16 tokens (2 to 9)', or 'all 16 tokens'."""
    places = mask.nonzero().flatten().tolist()
    if len(places) == len(mask):
        return f"all {len(mask)} {what}"

    count = f"{len(places)} of {len(mask)} {what}"
    if not places:
        return count
    if len(places) == 1:
        return f"{count} ({places[0]})"
    return f"{count} ({places[0]} to {places[-1]})"


def not_finite(x: torch.Tensor, y: torch.Tensor) -> list[str]:
    bad = ~x.isfinite()
    token, column = bad.nonzero()[0].tolist()
    what = "NaN" if x[token, column].isnan() else "infinite"
    tokens = span(bad.any(1), "tokens")
    columns = span(bad.any(0), "columns")
    lines = [f"{what} in {tokens}, {columns}; first at ({token}, {column})"]

    whole_rows = x.isnan().all(1)
    if whole_rows.any() and (y[whole_rows] == 0).all():
        lines.append(NO_LOCAL_EXPERT)
    return lines


def distances(x: torch.Tensor, y: torch.Tensor, tolerance: Tolerance) -> list[str]:
    """Return the largest errors, and which tokens and columns are wrong."""
    error = (x - y).abs()
    lines = [
        largest("absolute", error, x, y),
        largest("relative", torch.where(y == 0, 0, error / y.abs()), x, y),
    ]

    bad = exceeds(x, y, tolerance)
    if bad.any():
        too_many = 1 - tolerance.ratio
        tokens = bad.float().mean(1) > too_many
        shown = bad & tokens[:, None] if tokens.any() else bad
        token, column = shown.nonzero()[0].tolist()
        columns = span(shown.any(0), "columns")
        lines.append(
            f"wrong: {span(tokens, 'tokens')}, {columns}; "
            f"first at (token, column) = ({token}, {column})"
        )
    return lines


def largest(what: str, errors: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    token, column = divmod(int(errors.argmax()), errors.shape[1])
    got = float(x[token, column])
    want = float(y[token, column])
    return (
        f"largest {what} error {float(errors.max()):.4g} at ({token}, {column}): "
        f"got {got:.5g}, want {want:.5g}"
    )


def scaled(
    x: torch.Tensor, y: torch.Tensor, tolerance: Tolerance, factors: Mapping[str, float]
) -> str | None:
    """Return by which factor the output is wrong, and which input explains it, where it is right
    but for that.
    """
    factor = float((x * y).sum() / (y * y).sum())
    cosine = torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), 0)
    if cosine <= ALIKE:
        return None
    if exceeds(x / factor, y, tolerance).float().mean() > 1 - tolerance.ratio:
        return None

    sentence = f"the output is {factor:.4g} times the reference"
    for name, value in factors.items():
        if value in (0, 1):
            continue
        if math.isclose(factor, 1 / value, rel_tol=0.02):
            return f"{sentence}: {name} = {value:g} is forgotten"
        if math.isclose(factor, value, rel_tol=0.02):
            return f"{sentence}: {name} = {value:g} is applied twice"
    return sentence


def mistakes(inputs: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (what is wrong, inputs for which the reference is wrong in that way)."""
    for name, value in inputs.items():
        is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        if name.endswith("_scale") and is_floating:
            yield f"{name} is not applied", {**inputs, name: torch.ones_like(value)}
        elif name == "routing_bias":
            yield f"{name} is not added", {**inputs, name: torch.zeros_like(value)}
        elif name == "local_expert_offset" and value:
            yield f"{name} is taken as 0", {**inputs, name: 0}

    swapped = {name: with_halves_swapped(inputs[name]) for name in HALVES if name in inputs}
    if swapped:
        yield "the halves of gemm1, gate and up, are swapped", {**inputs, **swapped}


def with_halves_swapped(weights: torch.Tensor) -> torch.Tensor:
    as_bytes = weights.view(torch.uint8)
    return as_bytes.roll(weights.shape[1] // 2, 1).view(weights.dtype)


def likely_mistake(
    full: Definition, inputs: list, place: int, output: torch.Tensor, tolerance: Tolerance
) -> str | None:
    """Return the mistake with which the reference gives this output, or None.

    The reference is called once for each that is known.
    """
    reference = fib.build_reference(full)
    best_share = 0.0
    best_mistake = None
    for mistake, changed in mistakes(dict(zip(full.inputs, inputs, strict=True))):
        wrong = call(full, reference, list(changed.values()), str(output.device))[place]
        if not wrong.isfinite().all():
            continue

        bad = exceeds(output.float(), wrong.float(), tolerance)
        share = 1 - float(bad.float().mean())
        if share > best_share:
            best_share = share
            best_mistake = mistake
    return best_mistake if best_share >= tolerance.ratio else None
