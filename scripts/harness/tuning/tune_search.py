"""The search: which variants are timed, in what order, what is checked, and what is kept."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from harness.tuning.tune_bench import Bench, Pair, Timer, difference, medians
from harness.tuning.tune_record import Compared, LeftOut, Record, Timed, described
from harness.tuning.tune_routing import Layer
from harness.tuning.tune_space import TileSize, Variant, best_pair, modes, other_groups, useful_block_ms, variants

REPEATS = 3  # runs on each layer
HOPELESS = 1.5  # times the best one's time on the first layer: not worth the other layers
ROUNDS = 9  # of the last comparison, each over all layers

Prune = Callable[[list[Variant]], dict[Variant, str | None]]
Advance = Callable[[str, int, int], None]  # what is under way, how many of it are done, how many there are


@dataclass(frozen=True)
class Search:
    """prune: Variant -> why it is left out, None where it stays. timer: see tune_bench.event_times."""

    record: Record
    prune: Prune
    timer: Timer
    advance: Advance


def to_try(layers: list[Layer], present: Pair, tile: TileSize | None) -> list[Variant]:
    """The present tiles, and with them what is tried with their group, or every mode of the tile that is asked for."""
    rows = statistics.median(layer.rows / layer.active for layer in layers)
    block_ms = sorted({*useful_block_ms(rows), present[0].padded_to})
    others = modes(tile, block_ms) if tile else variants(block_ms, present[0].tile.group)
    return list(dict.fromkeys([*present, *others]))


def prune(search: Search, wanted: Iterable[Variant]) -> dict[Variant, str | None]:
    """Why each variant is left out, asked once for all; what the record knows is not compiled again."""
    wanted = list(dict.fromkeys(wanted))
    timed = {variant for _, variant in search.record.timed}
    unknown = [v for v in wanted if v not in search.record.left_out and v not in timed]
    for variant, reason in (search.prune(unknown) if unknown else {}).items():
        if reason:
            search.record.add(LeftOut(what=described(variant), reason=reason))
    return {variant: search.record.left_out.get(variant) for variant in wanted}


def time_all(search: Search, bench: Bench, wanted: list[Variant], label: str) -> None:
    """Check and time what the record does not have yet. The first variant of each stage is what others must equal."""
    record, tokens = search.record, bench.num_tokens
    for first in bench.present:
        stage = first.stage
        todo = [v for v in wanted if v.stage == stage and (tokens, v) not in record.timed]
        if not todo:
            continue
        expected = [bench.outputs(first, layer) for layer in bench.layers]
        for at, variant in enumerate(todo):
            search.advance(f"T={tokens} {stage} {label}", at, len(todo))
            record.add(measured(search, bench, variant, expected))
        search.advance(f"T={tokens} {stage} {label}", len(todo), len(todo))


def measured(search: Search, bench: Bench, variant: Variant, expected: list[torch.Tensor]) -> Timed:
    """One variant: on each layer checked against what is expected, then timed."""
    line = {"T": bench.num_tokens, "what": described(variant), "us": None, "layers": 0}
    same = [t.us for (tokens, v), t in search.record.timed.items()
            if tokens == bench.num_tokens and v.stage == variant.stage and t.us is not None]  # fmt: skip
    try:
        for layer, wanted in zip(bench.layers, expected, strict=True):
            wrong = difference(bench.outputs(variant, layer), wanted)
            if wrong:
                return Timed(**line, error=f"{layer.name}: {wrong}")
            if layer is bench.layers[0]:
                (us,) = medians(search.timer([bench.call(variant, layer)], REPEATS))
                if same and us > HOPELESS * min(same):
                    return Timed(**line | {"us": round(us, 2), "layers": 1})
        times = medians(search.timer([bench.call(variant, layer) for layer in bench.layers], REPEATS))
    except Exception as error:  # out of resources, or a variant that breaks: it is out, the others go on
        text = str(error).strip().splitlines() or [""]
        failed = Timed(**line, error=f"{type(error).__name__}: {text[0]}")
        if bench.device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as lost:
                search.record.add(failed)  # so that the next run leaves it out
                raise ValueError(f"{variant}: broke the device ({text[0]}); run again to go on after it") from lost
        return failed
    return Timed(**line | {"us": round(statistics.median(times), 2), "layers": len(times)})


def with_other_groups(search: Search, num_tokens: int) -> list[Variant]:
    """Other groups for the best pair of either mode, with TMA and without."""
    found = []
    for tma in (True, False):
        times = {v: us for v, us in search.record.times(num_tokens).items() if v.tma == tma}
        try:
            pair = best_pair(times)
        except ValueError:  # nothing goes together in this mode
            continue
        found += [variant for best in pair for variant in other_groups(best)]
    return found


def compare(search: Search, bench: Bench) -> Compared:
    """The present pair and the best found, each as one sequence, turn about."""
    present, found = bench.present, best_pair(search.record.times(bench.num_tokens))
    calls = []
    for layer in bench.layers:
        for first, second in (present, found):
            one, two = bench.call(first, layer), bench.call(second, layer)
            calls.append(lambda one=one, two=two: one() + two())
    times = search.timer(calls, ROUNDS)
    rounds = [
        [statistics.median(times[at][nth] for at in range(which, len(times), 2)) for nth in range(ROUNDS)]
        for which in (0, 1)
    ]
    present_us, found_us = (statistics.median(us) for us in rounds)
    quartiles = [statistics.quantiles(us, n=4) for us in rounds]
    noise = max(upper - lower for lower, _, upper in quartiles)
    return Compared(
        T=bench.num_tokens,
        present=[described(variant) for variant in present],
        found=[described(variant) for variant in found],
        present_us=round(present_us, 2),
        found_us=round(found_us, 2),
        noise_us=round(noise, 2),
        layers=len(bench.layers),
    )


def tune(search: Search, benches: list[Bench]) -> None:
    """Prune, time, try other groups, compare with the present tiles, for every T that the record has not to its end.

    What was compared may have become the present tiles since, so its search would not be the same again.
    """
    benches = [bench for bench in benches if bench.num_tokens not in search.record.compared]
    time_staying(search, benches, {b.num_tokens: to_try(b.layers, b.present, None) for b in benches}, "tiles")
    time_staying(search, benches, {b.num_tokens: with_other_groups(search, b.num_tokens) for b in benches}, "groups")
    for at, bench in enumerate(benches):
        search.advance("comparing with the present tiles", at, len(benches))
        search.record.add(compare(search, bench))
    if benches:
        search.advance("comparing with the present tiles", len(benches), len(benches))


def try_one(search: Search, benches: list[Bench], tile: TileSize) -> None:
    """Time one tile in all its modes, beside the present ones; nothing is chosen."""
    time_staying(search, benches, {b.num_tokens: to_try(b.layers, b.present, tile) for b in benches}, str(tile))


def time_staying(search: Search, benches: list[Bench], wanted: dict[int, list[Variant]], label: str) -> None:
    """Prune what is wanted at each T, all at once, and time the rest; the present tiles always stay."""
    why = prune(search, [variant for found in wanted.values() for variant in found])
    for bench in benches:
        found = wanted[bench.num_tokens]
        time_all(search, bench, [v for v in found if why[v] is None or v in bench.present], label)
