"""The search: which variants are timed, in what order, what is checked, and what is kept."""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from harness.core.errors import CannotRun
from harness.judging.calling import first_line
from harness.tuning.bench import Bench, difference, event_times
from harness.tuning.record import Compared, LeftOut, Record, Timed
from harness.tuning.routing import Layer
from harness.tuning.space import (
    Pair,
    TileSize,
    Variant,
    best_pair,
    coarse,
    modes,
    other_groups,
    useful_block_ms,
    variants,
)

REPEATS = 3  # runs on each layer
HOPELESS = 1.5  # times the best one's time on the first layer: not worth the other layers
ROUNDS = 9  # of the last comparison, each over all layers


def rows_per_expert(layers: list[Layer]) -> float:
    """Of an expert with rows; median over layers."""
    return statistics.median(layer.rows / layer.active for layer in layers)


def to_try(layers: list[Layer], present: Pair, tile: TileSize | None = None, few: bool = False) -> list[Variant]:
    """The present tiles first, then every mode of one tile, or the few of a coarse search, or all with their group."""
    rows = rows_per_expert(layers)
    block_ms = sorted({*useful_block_ms(rows), present[0].padded_to})
    others = modes(tile, block_ms) if tile else coarse(rows) if few else variants(block_ms, present[0].tile.group)
    return list(dict.fromkeys([*present, *others]))


@dataclass
class Search:
    """What a record lacks is compiled, checked, timed and added to it.

    prune: variants -> why each is left out, None where it stays.
    tracked(items, what): the items, one by one, while showing how far the loop over them is.
    """

    record: Record
    prune: Callable[[list[Variant]], dict[Variant, str | None]]
    tracked: Callable[[list, str], Iterable] = lambda items, what: items
    fit: set[Variant] = field(default_factory=set)  # known to compile

    def tune(
        self,
        wanted: dict[Bench, list[Variant]],
        refine: bool = True,
        deadline: float = math.inf,
        compared: Callable[[], None] = lambda: None,
    ) -> bool:
        """Time what is wanted at each T not yet in record.compared, try other groups, compare with the present tiles.

        A T that was compared is never searched again: its result may be the present tiles by now. refine=False: no
        other groups. deadline: by time.monotonic(), when no further T is begun. compared: called after each T.
        Returns whether every T was compared.
        """
        wanted = {bench: found for bench, found in wanted.items() if bench.num_tokens not in self.record.compared}
        for bench, found in wanted.items():
            if time.monotonic() >= deadline:
                return False
            self.time_all({bench: found}, "tiles")
            if refine:
                self.time_all({bench: self.with_other_groups(bench.num_tokens)}, "groups")
            self.record.add(self.compare(bench))
            compared()
        return True

    def unknown(self, wanted: Iterable[Variant]) -> list[Variant]:
        """Those of which neither the record nor an earlier pruning says whether they fit."""
        known = {*self.record.left_out, *(variant for _, variant in self.record.timed), *self.fit}
        return [variant for variant in dict.fromkeys(wanted) if variant not in known]

    def learn(self, reasons: dict[Variant, str | None]) -> None:
        """Record which variants are left out, and why."""
        for variant, reason in reasons.items():
            if reason:
                self.record.add(LeftOut(what=variant, reason=reason))
            else:
                self.fit.add(variant)

    def time_all(self, wanted: dict[Bench, list[Variant]], label: str) -> None:
        """Prune, then check and time what the record lacks; the present tiles stay in any case."""
        if unknown := self.unknown(variant for found in wanted.values() for variant in found):
            self.learn(self.prune(unknown))
        for bench, found in wanted.items():
            tokens, kept = bench.num_tokens, [v for v in found if v not in self.record.left_out or v in bench.present]
            for present in bench.present:
                todo = [v for v in kept if v.stage == present.stage and (tokens, v) not in self.record.timed]
                expected = [bench.outputs(present, layer) for layer in bench.layers] if todo else []
                for variant in self.tracked(todo, f"T={tokens} {present.stage} {label}"):
                    self.record.add(self.measured(bench, variant, expected))

    def measured(self, bench: Bench, variant: Variant, expected: list[torch.Tensor]) -> Timed:
        """One variant: on each layer compared with the expected values, then timed."""
        tokens, first = bench.num_tokens, bench.layers[0]
        known = [t.us for (at, v), t in self.record.timed.items()
                 if at == tokens and v.stage == variant.stage and t.us is not None]  # fmt: skip
        try:
            for layer, wanted in zip(bench.layers, expected, strict=True):
                if wrong := difference(bench.outputs(variant, layer), wanted):
                    return Timed(T=tokens, what=variant, error=f"{layer.name}: {wrong}")
                if layer is first:
                    us = statistics.median(event_times([bench.call(variant, first)], REPEATS)[0])
                    if known and us > HOPELESS * min(known):
                        return Timed(T=tokens, what=variant, us=round(us, 2), layers=1)
            times = event_times([bench.call(variant, layer) for layer in bench.layers], REPEATS)
        except Exception as error:  # out of resources, or a variant that breaks: it is out, the others go on
            failed = Timed(T=tokens, what=variant, error=first_line(error))
            if bench.device.type == "cuda":
                try:
                    torch.cuda.synchronize()
                except RuntimeError as lost:
                    self.record.add(failed)  # so that the next run leaves it out
                    wanted = "run again to continue after it"
                    raise CannotRun(f"{variant}: broke the device ({failed.error}); {wanted}") from lost
            return failed
        us = statistics.median(map(statistics.median, times))
        return Timed(T=tokens, what=variant, us=round(us, 2), layers=len(times))

    def with_other_groups(self, num_tokens: int) -> list[Variant]:
        """Other groups for the best pair of either mode, with TMA and without."""
        times = self.record.times(num_tokens)
        pairs = (best_pair({v: us for v, us in times.items() if v.tma == tma}) for tma in (True, False))
        return [variant for pair in pairs for best in pair or () for variant in other_groups(best)]

    def compare(self, bench: Bench) -> Compared:
        """The present pair and the best found, each as one sequence, interleaved."""
        found = best_pair(self.record.times(bench.num_tokens))
        if found is None:
            wanted = "one padding and one order of h for both"
            raise CannotRun(f"T = {bench.num_tokens}: no timed gemm1 goes with a timed gemm2: want {wanted}")
        calls = []
        for layer in bench.layers:
            for first, second in (bench.present, found):
                one, two = bench.call(first, layer), bench.call(second, layer)
                calls.append(lambda one=one, two=two: one() + two())
        times = event_times(calls, ROUNDS)
        rounds = [[statistics.median(us) for us in zip(*times[which::2], strict=True)] for which in (0, 1)]
        present_us, found_us = map(statistics.median, rounds)
        quartiles = [statistics.quantiles(us, n=4) for us in rounds]
        return Compared(
            T=bench.num_tokens,
            present=bench.present,
            found=found,
            present_us=round(present_us, 2),
            found_us=round(found_us, 2),
            noise_us=round(max(upper - lower for lower, _, upper in quartiles), 2),
            layers=len(bench.layers),
        )
