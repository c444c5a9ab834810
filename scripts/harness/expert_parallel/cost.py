"""A model, not a measurement: what the exchange of either way takes on more GPUs, from what was measured on two.

A collective takes a latency and its bytes over a rate, both fitted to measured points. On one host every GPU sends to
all others at that rate together, as NVLink through a switch does. Between hosts a GPU has a link of its own, whose
latency and rate are given and not measured.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from harness.expert_parallel.layer import BLOCK, Layer
from harness.expert_parallel.record import Point
from harness.operators import routing_model

GPUS_A_HOST = 8
DRAWN = 2048  # tokens whose routing stands for all


@dataclass(frozen=True)
class Link:
    """us that a collective takes at least, and GB/s that a GPU sends."""

    latency_us: float
    rate: float

    def us(self, count: float) -> float:
        """Of a collective in which a GPU sends so many bytes."""
        return self.latency_us + count / self.rate / 1e3


BETWEEN_HOSTS = Link(20.0, 45.0)  # assumed: 400 Gbit/s a GPU, at nine tenths


def fitted(points: list[tuple[float, float]]) -> Link:
    """Of (bytes, us): the least time is the latency, the most bytes show the rate. Raises ValueError below two.

    Of several with the most bytes the fastest counts: in others a rank has waited for another one's experts.
    """
    if len(points) < 2:
        raise ValueError(f"points: got {len(points)}, want two or more")
    latency = min(us for _, us in points)
    count, us = max(points, key=lambda point: (point[0], -point[1]))
    return Link(latency, count / max(us - latency, 1e-3) / 1e3)


def links(points: list[Point]) -> tuple[Link, Link]:
    """There and back, of the all-gather and the reduce-scatter, which do nothing but carry."""
    there = [(point.there_bytes, 1e3 * point.there_ms) for point in points if point.way == "gather"]
    back = [(point.back_bytes, 1e3 * point.back_ms) for point in points if point.way == "gather"]
    return fitted(there), fitted(back)


@cache
def others_reached(layer: Layer) -> tuple[float, float]:
    """Other ranks that a token's experts are on, on average: on its own host, and on others."""
    logits, bias = routing_model.draw("expert-parallel", DRAWN, {}, of=layer.of)
    ranks = routing_model.select(logits, bias, layer.of) // layer.local
    own = np.arange(DRAWN) % layer.ranks
    chosen = np.zeros((DRAWN, layer.ranks), dtype=bool)
    np.put_along_axis(chosen, ranks, True, axis=1)
    chosen[np.arange(DRAWN), own] = False
    near = np.arange(layer.ranks)[None] // GPUS_A_HOST == own[:, None] // GPUS_A_HOST
    return float((chosen & near).sum(1).mean()), float((chosen & ~near).sum(1).mean())


def row_bytes(layer: Layer, way: str) -> int:
    """Of a token on its way there: values and scales, and logits or ids and weights."""
    hidden = layer.of["hidden_size"]
    router = 4 * layer.of["num_experts"] if way == "gather" else 8 * layer.of["top_k"]
    return hidden + 4 * hidden // BLOCK + router


def exchanged_us(layer: Layer, way: str, tokens: int, there: Link, back: Link) -> float:
    """us of a call's exchange, there and back, with so many tokens a rank; parts go back in bf16.

    Within a host and between hosts at the same time, so the slower of both counts.
    """
    hosts = min(layer.ranks, GPUS_A_HOST)
    near, far = (hosts - 1, layer.ranks - hosts) if way == "gather" else others_reached(layer)
    total = 0.0
    for link, width in ((there, row_bytes(layer, way)), (back, 2 * layer.of["hidden_size"])):
        times = [link.us(tokens * near * width)]
        if layer.ranks > GPUS_A_HOST:
            times.append(BETWEEN_HOSTS.us(tokens * far * width))
        total += max(times)
    return total
