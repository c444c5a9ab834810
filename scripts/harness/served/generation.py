"""What a language model of transformers does with each implementation of its experts: logits, prefill, decode."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from harness.judging.calling import first_line
from harness.served.deepseek_v3 import BF16, Model
from harness.served.generation_record import Line
from harness.served.passes import capture, median_ms

LARGEST_ERROR = 0.08  # relative, of the median token's logits; rounding tokens and h to FP8 gives about half of it
STEPS = {"prefill": 3, "decode": 16, "decode graph": 20}  # timed in a turn
Step = Callable[[], torch.Tensor]


def prompt(model: Model, batch: int, length: int) -> torch.Tensor:
    """Token ids [batch, length], the same at each call."""
    device, vocabulary = model.lm.device, model.lm.config.vocab_size
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator(device).manual_seed(1), device=device)


def logits(model: Model, implementation: str, length: int) -> torch.Tensor:
    """[length, vocabulary] float32 of one prompt."""
    model.use(implementation)
    return model.lm(prompt(model, 1, length), use_cache=False).logits[0].float()


@torch.inference_mode()
def compare_logits(model: Model, implementation: str, length: int) -> Line:
    """Against the same model with its experts in bf16."""
    want, got = logits(model, BF16, length), logits(model, implementation, length)
    errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
    median, same = errors.median().item(), (got.argmax(-1) == want.argmax(-1)).float().mean().item()
    return Line(
        experts=implementation,
        tokens=length,
        median=round(median, 5),
        worst=round(errors.max().item(), 5),
        same_token=round(same, 4),
        # also where it is NaN
        error=None if median <= LARGEST_ERROR else f"median error {median:.3f}, want {LARGEST_ERROR} at most",
    )


def prefill(model: Model, _batch: int, length: int) -> Step:
    """A prompt's pass, to the first new token, with a cache of its own at each call."""
    ids = prompt(model, 1, length)
    return lambda: model.lm(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1)


def decode(model: Model, batch: int, context: int) -> Step:
    """A step of every sequence: one token in, the next one out; the cache grows by one at each call."""
    first = model.lm(prompt(model, batch, context), use_cache=True, logits_to_keep=1)
    state = {"ids": first.logits.argmax(-1), "cache": first.past_key_values}

    def step() -> torch.Tensor:
        state["ids"] = model.lm(state["ids"], past_key_values=state["cache"]).logits.argmax(-1)
        return state["ids"]

    return step


def decode_in_place(model: Model, batch: int, context: int) -> Step:
    """The first step after the context, in a cache of a fixed size: the same at each call, as a graph wants it."""
    from transformers import StaticCache

    cache = StaticCache(config=model.lm.config, max_cache_len=context + 8)
    ids = model.lm(prompt(model, batch, context), past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    position = torch.full((1, 1), context, device=ids.device)

    def step() -> torch.Tensor:
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)
        return model.lm(ids, past_key_values=cache, position_ids=position).logits

    return step


def decode_graph(model: Model, batch: int, context: int) -> Step:
    """The replay of one such step as a CUDA graph. Raises whatever forbids capture, and as `check_replay` does.

    It is checked with plain attention: transformers' default one does not repeat to the bit.
    """
    step = decode_in_place(model, batch, context)
    timed = model.lm.config._attn_implementation
    model.lm.set_attn_implementation("eager")
    try:
        step()
        eager = [step().clone() for _ in range(2)]
        torch.cuda.synchronize()
        replay = capture(step)
        check_replay([replay().clone() for _ in range(2)], eager)
    finally:
        model.lm.set_attn_implementation(timed)
    step()
    return capture(step)


def check_replay(graph: list[torch.Tensor], eager: list[torch.Tensor]) -> None:
    """Raise ValueError where a graph's logits are not those of the step that it was captured from; says how far apart.

    graph, eager: logits [batch, 1, vocabulary] of two replays, of two steps without a graph. Where the two steps are
    apart the step itself is at fault.
    """
    apart, steps, replays = difference(graph[0], eager[1]), difference(*eager), difference(*graph)
    if steps.far:
        raise ValueError(f"the step itself is not repeatable: logits of two steps without a graph: {steps}")
    if apart.far or replays.far:
        raise ValueError(
            f"logits of the graph are not those of the step that it was captured from: {apart}; "
            f"of two steps without a graph: {steps}; of two replays: {replays}"
        )


class Difference(NamedTuple):
    """Of `tokens`, changed: in any bit; far: by more than another order of sums explains. most: NaN where one is."""

    tokens: int
    changed: int
    far: int
    most: float

    def __str__(self) -> str:
        return f"{self.changed} of {self.tokens} tokens differ, {self.far} beyond rounding, by up to {self.most:.3g}"


def difference(got: torch.Tensor, want: torch.Tensor) -> Difference:
    """By token, of logits [batch, 1, vocabulary]."""
    got, want = got.flatten(0, -2), want.flatten(0, -2)
    far = ~torch.isclose(got, want, rtol=0.1, atol=0.1)
    return Difference(
        tokens=len(want),
        changed=int((got != want).any(-1).sum()),
        far=int(far.any(-1).sum()),
        most=(got.float() - want.float()).abs().max().item(),
    )


PHASES = {"prefill": prefill, "decode": decode, "decode graph": decode_graph}


@torch.inference_mode()
def measure(
    model: Model, implementations: list[str], points: list[tuple[str, int, int]], turns: int, device: str
) -> Iterator[Line]:
    """Lines of each point (phase, batch, tokens): the implementations in turns, BF16 among them; another one begins
    each turn. One that fails is timed no further there."""
    for phase, batch, tokens in points:
        ms, failed, order = {name: [] for name in implementations}, {}, deque(implementations)
        for _ in range(turns):
            for name in order:
                if name in failed:
                    continue
                try:
                    model.use(name)
                    step = PHASES[phase](model, batch, tokens)
                    step()
                    ms[name].append(round(median_ms(step, STEPS[phase] if device != "cpu" else 1, device), 4))
                except Exception as error:  # whatever an implementation raises is its result
                    failed[name] = first_line(error)
                step = None  # with its cache and graph
            order.rotate(-1)
        for name in implementations:
            yield Line(experts=name, tokens=tokens, batch=batch, phase=phase, ms=ms[name], error=failed.get(name))
