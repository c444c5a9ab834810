"""What is wrong with an output, in sentences for the person who wrote the solution."""

import math
from collections.abc import Iterator, Mapping

import torch
from flashinfer_bench import Definition
from flashinfer_bench.compile import BuilderRegistry

from moebench.judging.calling import call
from moebench.judging.tolerances import Tolerance


def sentences(output: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance, factors=None):
    """How far a wrong output [T, C] is from the reference, where, and the common cause that it
    looks like: list[str].

    One of another rank is flattened after its first axis. output: NaN where nothing was written.
    factors: the scalar inputs by name.
    """
    if (output.shape, output.dtype) != (reference.shape, reference.dtype):
        got, want = (
            f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in (output, reference)
        )
        return [f"the output is {got}, want {want}"]
    if output.isnan().all() and output.numel():
        return [
            "every element is NaN, as before the call: run() has to write into `output`, and not to return one"
        ]
    x, y = (
        z.float().flatten(1) if z.dim() > 1 else z.float().reshape(-1, 1)
        for z in (output, reference)
    )
    if not x.isfinite().all():
        return not_finite(x, y)
    zero = None if x.any() else "every element is zero"
    cause = zero or scaled(x, y, tolerance, factors or {})
    return [*distances(x, y, tolerance), *([cause] if cause else [])]


def exceeds(x: torch.Tensor, y: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """[T, C] bool, as FIB judges an element."""
    error = (x - y).abs()
    return (error > tolerance.atol) & (error / (y.abs() + 1e-8) > tolerance.rtol)


def span(mask: torch.Tensor, what: str) -> str:
    """'3 of 16 tokens (2 to 9)', or 'all 16 tokens'."""
    at = mask.nonzero().flatten().tolist()
    if len(at) == len(mask):
        return f"all {len(mask)} {what}"
    where = f" ({at[0]})" if len(at) == 1 else f" ({at[0]} to {at[-1]})" if at else ""
    return f"{len(at)} of {len(mask)} {what}{where}"


def not_finite(x: torch.Tensor, y: torch.Tensor) -> list[str]:
    bad = ~x.isfinite()
    token, column = bad.nonzero()[0].tolist()
    kind = "NaN" if x[token, column].isnan() else "infinite"
    found = [
        f"{kind} in {span(bad.any(1), 'tokens')}, {span(bad.any(0), 'columns')}; first at ({token}, {column})"
    ]
    whole = x.isnan().all(1)
    if whole.any() and (y[whole] == 0).all():
        found.append("those rows must be zero (no local expert): they have to be written, too")
    return found


def distances(x: torch.Tensor, y: torch.Tensor, tolerance: Tolerance) -> Iterator[str]:
    error = (x - y).abs()
    relative = torch.where(y == 0, 0, error / y.abs())
    for what, values in (("absolute", error), ("relative", relative)):
        token, column = divmod(int(values.argmax()), values.shape[1])
        got, want = (f"{float(z[token, column]):.5g}" for z in (x, y))
        yield f"largest {what} error {float(values.max()):.4g} at ({token}, {column}): got {got}, want {want}"
    bad = exceeds(x, y, tolerance)
    tokens = (
        bad.float().mean(1) > 1 - tolerance.ratio
    )  # [T]: those of which too many elements are wrong
    if bad.any():
        of_tokens = bad & tokens[:, None] if tokens.any() else bad
        token, column = of_tokens.nonzero()[0].tolist()
        columns = span(of_tokens.any(0), "columns")
        yield f"wrong: {span(tokens, 'tokens')}, {columns}; first at (token, column) = ({token}, {column})"


def scaled(
    x: torch.Tensor, y: torch.Tensor, tolerance: Tolerance, factors: Mapping[str, float]
) -> str | None:
    """Said where the output is right but for a factor."""
    factor = float((x * y).sum() / (y * y).sum())
    alike = torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), 0) > 0.99
    if not alike or exceeds(x / factor, y, tolerance).float().mean() > 1 - tolerance.ratio:
        return None
    said = f"the output is {factor:.4g} times the reference"
    for name, value in factors.items():
        for times, what in (
            (1 / value if value else math.inf, "forgotten"),
            (value, "applied twice"),
        ):
            if value != 1 and math.isclose(factor, times, rel_tol=0.02):
                return f"{said}: {name} = {value:g} is {what}"
    return said


def mistakes(inputs: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """(what is wrong, inputs for which the reference is wrong in that way)."""
    for name, value in inputs.items():
        if (
            name.endswith("_scale")
            and isinstance(value, torch.Tensor)
            and value.is_floating_point()
        ):
            yield f"{name} is not applied", inputs | {name: torch.ones_like(value)}
        elif name == "routing_bias":
            yield f"{name} is not added", inputs | {name: torch.zeros_like(value)}
        elif name == "local_expert_offset" and value:
            yield f"{name} is taken as 0", inputs | {name: 0}
    halves = {n: v for n, v in inputs.items() if n in ("gemm1_weights", "gemm1_weights_scale")}
    if halves:
        swapped = {
            n: v.view(torch.uint8).roll(v.shape[1] // 2, 1).view(v.dtype) for n, v in halves.items()
        }
        yield "the halves of gemm1, gate and up, are swapped", inputs | swapped


def likely_mistake(
    full: Definition, inputs: list, at: int, output: torch.Tensor, tolerance: Tolerance
) -> str | None:
    """The mistake with which the reference gives this output; it is called once for each that is
    known.
    """
    reference, shares = BuilderRegistry.get_instance().build_reference(full), {}
    for what, changed in mistakes(dict(zip(full.inputs, inputs, strict=True))):
        wrong = call(full, reference, list(changed.values()), str(output.device))[at]
        if wrong.isfinite().all():
            shares[what] = 1 - float(
                exceeds(output.float(), wrong.float(), tolerance).float().mean()
            )
    return next(
        (
            what
            for what, share in shares.items()
            if share == max(shares.values()) >= tolerance.ratio
        ),
        None,
    )


def diagnose(
    full: Definition,
    inputs: list,
    at: int,
    output: torch.Tensor,
    expected: torch.Tensor,
    by: Tolerance,
):
    """`sentences` on a wrong output, the one at this place, and the mistake that explains it if one
    does: list[str].
    """
    scalars = {n: v for n, v in zip(full.inputs, inputs, strict=True) if isinstance(v, float)}
    found = sentences(output, expected, by, scalars)
    unexplained = found[-1].startswith("wrong")
    mistake = likely_mistake(full, inputs, at, output, by) if unexplained else None
    which = [f"of the output {[*full.outputs][at]}:"] if len(full.outputs) > 1 else []
    return [*which, *found, *([mistake] if mistake else [])]
