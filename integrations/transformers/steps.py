"""Forward passes of a language model, as calls to be timed: prefill of a prompt, a step of decode,
and such a step as a CUDA graph.
"""

import torch
from moebench.served.forward import Forward, capture
from transformers import DeepseekV3ForCausalLM, StaticCache

SPARE_TOKENS = 8  # by which a cache of a fixed size is longer than the context


def prompt(model: DeepseekV3ForCausalLM, batch: int, length: int) -> torch.Tensor:
    """Return token ids [batch, length], the same at each call."""
    device = model.device
    words = model.config.vocab_size
    source = torch.Generator(device).manual_seed(1)
    return torch.randint(words, (batch, length), generator=source, device=device)


def prefill(model: DeepseekV3ForCausalLM, batch: int, length: int) -> Forward:
    """Return a prompt's forward pass, to the first new token, with a new cache at each call."""
    ids = prompt(model, batch, length)

    def step() -> torch.Tensor:
        output = model(ids, use_cache=True, logits_to_keep=1)
        return output.logits

    return step


def decode(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Forward:
    """Return a step of decode: each sequence of the batch gets one more token.

    The cache grows by one at each call.
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
    """Return the first step of decode after the context, in a cache of a fixed size.

    Each call repeats that step on the same tensors, so that a CUDA graph can capture it.
    """
    length = context + SPARE_TOKENS
    cache = StaticCache(config=model.config, max_cache_len=length)
    before = prompt(model, batch, context)
    first = model(before, past_key_values=cache, logits_to_keep=1)
    ids = first.logits.argmax(-1)

    device = ids.device
    position = torch.full((1, 1), context, device=device)
    # The model's own code for a mask cannot be captured.
    mask = torch.zeros(batch, 1, 1, length, dtype=model.dtype, device=device)
    mask[..., context + 1 :] = torch.finfo(mask.dtype).min

    def step() -> torch.Tensor:
        # Forget the token that the previous call has added.
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)
        output = model(ids, past_key_values=cache, position_ids=position, attention_mask=mask)
        return output.logits

    return step


def decode_graph(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Forward:
    """Return the replay of `decode_in_place`'s step as a CUDA graph.

    Raises AssertionError where the logits of a replay are not, to 0.1, those of the step itself.
    That is checked with eager attention, as the model's own differs from call to call.
    """
    step = decode_in_place(model, batch, context)
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    eager_logits = step().clone()
    graph_logits = capture(step)()
    torch.testing.assert_close(graph_logits, eager_logits, rtol=0.1, atol=0.1)

    model.set_attn_implementation(attention)
    step()  # once with that attention before it is captured
    return capture(step)
