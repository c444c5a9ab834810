"""What is to be tuned for one definition, and how long that may take."""

import os
from dataclasses import dataclass
from types import ModuleType

from harness.tuning.prune import Target, kernels
from harness.tuning.record import Head
from harness.tuning.routing import Layer
from harness.tuning.search import REPEATS, ROUNDS, rows_per_expert
from harness.tuning.space import Pair, Variant

# Seconds, rough, for the estimate alone
KERNEL_S, PROCESS_S = 1.5, 8  # to compile one on one core; to start a compiling process
DEFINITION_S, VARIANT_S = 3, 0.05  # to build the solution and draw weights; to check a variant
FLUSH_S = 2e-4  # to flush L2
BYTES_S, FLOPS_S = 3e12, 5e14  # what a GEMM that is no good reaches on an H200


@dataclass(frozen=True)
class Plan:
    """By token count: the routings to time on, what the solution runs at present, and what is to be tried."""

    geometry: str
    solution: ModuleType
    head: Head
    target: Target
    layers: dict[int, list[Layer]]
    present: dict[int, Pair]
    wanted: dict[int, list[Variant]]

    def timing_s(self) -> float:
        """Estimated seconds of drawing weights, checking and timing."""
        total = DEFINITION_S
        weights = self.head.hidden * self.head.intermediate
        for at, layers in self.layers.items():
            rows, active = (sum(each) / len(layers) for each in zip(*((x.rows, x.active) for x in layers), strict=True))
            layer_s = max(3 * weights * active / BYTES_S, 6 * weights * rows / FLOPS_S)
            runs = len(layers) * (1 + REPEATS) + REPEATS
            total += len(self.wanted[at]) * (VARIANT_S + runs * (FLUSH_S + layer_s / 2))
            total += 2 * ROUNDS * len(layers) * (FLUSH_S + layer_s)
        return total

    def __str__(self) -> str:
        each = (f"{at}: {rows_per_expert(self.layers[at]):.3g}, {len(self.wanted[at])}" for at in sorted(self.wanted))
        return f"{self.geometry}: about {self.timing_s():.0f} s; T: rows per expert, candidates: {'; '.join(each)}"


def summary(plans: list[Plan]) -> str:
    """A line a definition, and one of all with the time to compile."""
    number = len(kernels({plan.target: sum(plan.wanted.values(), []) for plan in plans}))
    compile_s = PROCESS_S + number * KERNEL_S / (os.cpu_count() or 1)
    total = compile_s + sum(plan.timing_s() for plan in plans)
    last = f"{number} kernels, about {compile_s:.0f} s to compile on {os.cpu_count()} cores; about {total:.0f} s in all"
    return "\n".join([*map(str, plans), last])
