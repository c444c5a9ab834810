"""plan: what the host decides for a call, once for each kind of call.

The kind is all that the host looks at: shapes, dtypes, devices, contiguity and alignment of the tensors, and the
numbers. Of a kind that was accepted before nothing is checked again, and its allocations and launches are prepared.
Of addresses only the alignment is looked at, and none is kept.
"""

from collections.abc import Callable
from functools import reduce
from operator import attrgetter, or_
from typing import NamedTuple

import torch

from .combine_reset import prepare_combine_reset
from .common.host.arguments import DS_ROUTING, check_arguments
from .common.host.problem import HIDDEN_SIZE, INTERMEDIATE_SIZE
from .gather import prepare_gather
from .grouped_gemm import operand, result
from .pairs import pairs_of
from .rows import Rows, arrange
from .swiglu_quant_rows import prepare_swiglu_quant_rows

MOST_PLANS = 4096
_plans = {}  # kind -> Plan
_described = attrgetter("shape", "dtype", "device")


class Plan(NamedTuple):
    """Of a call with at least one token. What comes after `rows` are functions."""

    rows: Rows
    pairs: Callable  # allocations
    x: Callable  # gathered
    x_scale: Callable
    g: Callable
    h: Callable
    h_scale: Callable
    y: Callable
    gather: Callable  # launches
    swiglu_quant_rows: Callable
    combine_reset: Callable


def plan_of(interface, tensors, local_expert_offset=0, routed_scaling_factor=1.0):
    """The `Plan` of a call; None where there are no tokens.

    Args:
        interface: DS_ROUTING or RENORM_ROUTING.
        tensors: its tensors, in its order.
        local_expert_offset, routed_scaling_factor: DS_ROUTING's.

    Raises:
        ValueError: as `check_arguments`.
    """
    try:
        kind = (
            local_expert_offset,
            type(local_expert_offset),
            routed_scaling_factor,
            type(routed_scaling_factor),
            *map(_described, tensors),
            *map(torch.Tensor.is_contiguous, tensors),
            reduce(or_, map(torch.Tensor.data_ptr, tensors)) % 16,
        )
        plan = _plans.get(kind)
    except (AttributeError, TypeError):  # something is no tensor, or no number: check_arguments names it
        plan = None
    if plan is None:
        numbers = (local_expert_offset, routed_scaling_factor)
        check_arguments(interface, (*tensors[:-1], *(numbers if interface is DS_ROUTING else ()), tensors[-1]))
        num_tokens, device = len(tensors[0]), tensors[0].device
        if num_tokens == 0:
            return None
        if len(_plans) >= MOST_PLANS:
            _plans.clear()
        plan = _plans[kind] = _new_plan(num_tokens, device, *numbers)
    return plan


def _new_plan(num_tokens, device, local_expert_offset, routed_scaling_factor):
    rows = arrange(num_tokens)
    return Plan(
        rows,
        pairs_of(num_tokens, device),
        *operand(rows, HIDDEN_SIZE, device),
        result(rows, 2 * INTERMEDIATE_SIZE, device),
        *operand(rows, INTERMEDIATE_SIZE, device),
        result(rows, HIDDEN_SIZE, device),
        prepare_gather(rows, num_tokens, local_expert_offset, routed_scaling_factor, device),
        prepare_swiglu_quant_rows(rows, num_tokens, device),
        prepare_combine_reset(num_tokens, device),
    )
