"""Make the forward passes that main.py times, as functions without arguments: prefill of prompts, a
step of decode, and a step of decode as a CUDA graph.
"""

import torch
from moebench.served.forward import Forward, capture
from transformers import DeepseekV3ForCausalLM, StaticCache

SPARE_TOKENS = 8  # room in a cache of fixed size beyond the context


def prompt(model: DeepseekV3ForCausalLM, batch: int, length: int) -> torch.Tensor:
    """Return token ids [batch, length], the same at each call."""
    device = model.device
    words = model.config.vocab_size
    source = torch.Generator(device).manual_seed(1)
    return torch.randint(words, (batch, length), generator=source, device=device)


def prefill(model: DeepseekV3ForCausalLM, batch: int, length: int) -> Forward:
    """Return a function that computes the first new token of prompts, with a new cache."""
    ids = prompt(model, batch, length)

    def step() -> torch.Tensor:
        output = model(ids, use_cache=True, logits_to_keep=1)
        return output.logits

    return step


def decode(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Forward:
    """Return a function that computes one more token of each sequence.

    The cache grows by a token at each call.
    """
    before = prompt(model, batch, context)
    first = model(before, use_cache=True, logits_to_keep=1)
    cache = first.past_key_values
    ids = first.logits.argmax(-1)

    def step() -> torch.Tensor:
        nonlocal ids
        output = model(ids, past_key_values=cache)
        ids = output.logits.argmax(-1)
        return output.logits

    return step


def decode_in_place(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Forward:
    """Return a function that computes the first token after the context, in a cache of fixed size.

    Each call repeats this step on the same tensors, so that a CUDA graph can capture it.
    """
    length = context + SPARE_TOKENS
    cache = StaticCache(config=model.config, max_cache_len=length)
    before = prompt(model, batch, context)
    first = model(before, past_key_values=cache, logits_to_keep=1)
    ids = first.logits.argmax(-1)

    device = ids.device
    position = torch.full((1, 1), context, device=device)
    # The model's own code for making a mask cannot be captured in a graph, so it gets one.
    mask = torch.zeros(batch, 1, 1, length, dtype=model.dtype, device=device)
    mask[..., context + 1 :] = torch.finfo(mask.dtype).min

    def step() -> torch.Tensor:
        # Forget the token that the previous call has added.
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)
        output = model(
            ids, past_key_values=cache, position_ids=position, attention_mask=mask
        )
        return output.logits

    return step


def decode_graph(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Forward:
    """Return a function that replays the step of `decode_in_place` as a CUDA graph.

    Raises AssertionError where the logits of a replay differ by more than 0.1 from those of the
    step itself. This is checked with eager attention, as results of the model's default attention
    differ from call to call.
    """
    step = decode_in_place(model, batch, context)
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    eager_logits = step().clone()
    graph_logits = capture(step)()
    torch.testing.assert_close(graph_logits, eager_logits, rtol=0.1, atol=0.1)

    model.set_attn_implementation(attention)
    # a call outside of a capture, as the first call with this attention cannot be captured
    step()
    return capture(step)
