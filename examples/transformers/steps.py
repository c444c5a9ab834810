"""What a language model does, as calls to be timed: prefill of a prompt, a step of decode, the same as a CUDA graph."""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch
from deepseek_v3 import Model
from transformers import StaticCache

Step = Callable[[], torch.Tensor]


def prompt(model: Model, batch: int, length: int) -> torch.Tensor:
    """Token ids [batch, length], the same at each call."""
    device, vocabulary = model.lm.device, model.lm.config.vocab_size
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator(device).manual_seed(1), device=device)


def prefill(model: Model, batch: int, length: int) -> Step:
    """A prompt's pass, to the first new token, with a cache of its own at each call."""
    ids = prompt(model, batch, length)
    return lambda: model.lm(ids, use_cache=True, logits_to_keep=1).logits


def decode(model: Model, batch: int, context: int) -> Step:
    """A step of every sequence: one token in, the next one out; the cache grows by one at each call."""
    first = model.lm(prompt(model, batch, context), use_cache=True, logits_to_keep=1)
    state = {"ids": first.logits.argmax(-1), "cache": first.past_key_values}

    def step() -> torch.Tensor:
        logits = model.lm(state["ids"], past_key_values=state["cache"]).logits
        state["ids"] = logits.argmax(-1)
        return logits

    return step


def decode_in_place(model: Model, batch: int, context: int) -> Step:
    """The first step after the context, in a cache of a fixed size: the same at each call, as a graph wants it."""
    cache = StaticCache(config=model.lm.config, max_cache_len=context + 8)
    ids = model.lm(prompt(model, batch, context), past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    position = torch.full((1, 1), context, device=ids.device)
    # Made here, as the way in which the model makes one cannot be captured.
    mask = torch.zeros(batch, 1, 1, context + 8, dtype=model.lm.dtype, device=ids.device)
    mask[..., context + 1 :] = torch.finfo(mask.dtype).min

    def step() -> torch.Tensor:
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)
        return model.lm(ids, past_key_values=cache, position_ids=position, attention_mask=mask).logits

    return step


def captured(step: Step) -> Step:
    """The replay of a step, which has run before, as a CUDA graph. Raises whatever forbids capture."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    return lambda: (graph.replay(), output)[1]


def decode_graph(model: Model, batch: int, context: int) -> Step:
    """The replay of one step. Raises ValueError where its logits are not those of the step that it is captured from.

    That is checked with plain attention, as transformers' default one does not repeat to the bit.
    """
    step, attention = decode_in_place(model, batch, context), model.lm.config._attn_implementation
    model.lm.set_attn_implementation("eager")
    eager, graph = step().clone(), captured(step)()
    if not torch.isclose(graph, eager, rtol=0.1, atol=0.1).all():
        apart = (graph.float() - eager.float()).abs().max()
        raise ValueError(f"the graph's logits are up to {apart:.3g} from those of the step that it is captured from")
    model.lm.set_attn_implementation(attention)
    step()
    return captured(step)


def median_ms(step: Step, calls: int) -> float:
    """On a GPU between CUDA events, with no wait between calls; on a CPU of one call."""
    if not torch.cuda.is_available():
        begin = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begin)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return median(before.elapsed_time(after) for before, after in pairwise(marks))
