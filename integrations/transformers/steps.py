"""What a language model does, as calls to be timed: prefill of a prompt, a step of decode, the same
as a CUDA graph.
"""

import torch
from moebench.served.passes import Pass, capture
from transformers import DeepseekV3ForCausalLM, StaticCache


def prompt(model: DeepseekV3ForCausalLM, batch: int, length: int) -> torch.Tensor:
    """Token ids [batch, length], the same at each call."""
    device, vocabulary = model.device, model.config.vocab_size
    return torch.randint(
        vocabulary, (batch, length), generator=torch.Generator(device).manual_seed(1), device=device
    )


def prefill(model: DeepseekV3ForCausalLM, batch: int, length: int) -> Pass:
    """A prompt's pass, to the first new token, with a cache of its own at each call."""
    ids = prompt(model, batch, length)
    return lambda: model(ids, use_cache=True, logits_to_keep=1).logits


def decode(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Pass:
    """A step of every sequence: one token in, the next one out; the cache grows by one at each
    call.
    """
    first = model(prompt(model, batch, context), use_cache=True, logits_to_keep=1)
    state = {"ids": first.logits.argmax(-1), "cache": first.past_key_values}

    def step() -> torch.Tensor:
        logits = model(state["ids"], past_key_values=state["cache"]).logits
        state["ids"] = logits.argmax(-1)
        return logits

    return step


def decode_in_place(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Pass:
    """The first step after the context, in a cache of a fixed size: the same at each call, as a
    graph wants it.
    """
    cache = StaticCache(config=model.config, max_cache_len=context + 8)
    ids = model(
        prompt(model, batch, context), past_key_values=cache, logits_to_keep=1
    ).logits.argmax(-1)
    position = torch.full((1, 1), context, device=ids.device)
    # Made here, as the way in which the model makes one cannot be captured.
    mask = torch.zeros(batch, 1, 1, context + 8, dtype=model.dtype, device=ids.device)
    mask[..., context + 1 :] = torch.finfo(mask.dtype).min

    def step() -> torch.Tensor:
        for layer in cache.layers:
            layer.cumulative_length.fill_(context)
        return model(ids, past_key_values=cache, position_ids=position, attention_mask=mask).logits

    return step


def decode_graph(model: DeepseekV3ForCausalLM, batch: int, context: int) -> Pass:
    """The replay of one step. Raises AssertionError where its logits are not those of the step it
    is captured from.

    That is checked with plain attention, as transformers' default one does not repeat to the bit.
    """
    step, attention = decode_in_place(model, batch, context), model.config._attn_implementation
    model.set_attn_implementation("eager")
    eager, graph = step().clone(), capture(step)()
    torch.testing.assert_close(graph, eager, rtol=0.1, atol=0.1)
    model.set_attn_implementation(attention)
    step()
    return capture(step)
