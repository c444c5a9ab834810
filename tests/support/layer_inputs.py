"""Random arguments of a definition's layer, and its reference as a module."""

from functools import cache
from types import SimpleNamespace

import torch
from moebench.operators import catalogue

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXPONENTS = (118, 124)  # of scales, as bytes
BYTES = dict.fromkeys(("gemm1_weights", "gemm2_weights"), (-128, 128))  # two E2M1 each


def arguments(geometry, num_tokens, device=DEVICE, seed=0, offset=64):
    """The definition's inputs by name, then `output`, full of NaN; without values on "meta".

    offset: the first local expert, where a rank has some of them. About half of the pairs are
    local; of a router's ids some are empty.
    """
    definition, of = catalogue.definition(geometry), catalogue.geometries()[geometry]
    experts = of.get("num_experts")
    local = of.get("num_local_experts", experts)
    offset = 0 if local == experts else offset
    generator = None if device == "meta" else torch.Generator(device).manual_seed(seed)
    shapes, dtypes = (
        definition.get_input_shapes({"seq_len": num_tokens}),
        definition.torch_input_dtypes,
    )
    found = {"local_expert_offset": offset, "routed_scaling_factor": 2.5}
    for name, shape, dtype in zip(definition.inputs, shapes, dtypes, strict=True):
        if shape is None:
            found[name] = found.pop(name)  # to its place
            continue
        value = torch.randn(shape, generator=generator, device=device)
        if name == "routing_logits":
            value[:, offset : offset + local] += 1.5
            if (
                dtype == torch.bfloat16
            ):  # no two of a token are equal: either expert would be right then
                value = torch.linspace(-2, 2, experts, device=device).bfloat16()[value.argsort(1)]
        elif name == "routing_bias":
            value *= 0.05
        elif name in ("topk_ids", "expert_ids"):
            some = min(2 * local, experts)
            value = torch.rand(num_tokens, some, generator=generator, device=device).argsort(1)[
                :, : of["top_k"]
            ]
            if name == "topk_ids":
                value += max(offset - local // 2, 0)
                value[::3, 2] = -1
        elif name in ("topk_weights", "expert_weights"):
            value = value.softmax(1)
        elif dtype == torch.int8:
            low, high = BYTES.get(name, EXPONENTS)
            value = torch.randint(low, high, shape, generator=generator, device=device)
        found[name] = value.to(dtype).contiguous()
    found = {name: found[name] for name in definition.inputs}
    (shape,), (dtype,) = (
        definition.get_output_shapes({"seq_len": num_tokens}),
        definition.torch_output_dtypes,
    )
    return found | {"output": torch.full(shape, torch.nan, dtype=dtype, device=device)}


@cache
def reference(geometry):
    """What the definition's reference defines: `run`, `route`, ..."""
    exec(catalogue.definition(geometry).reference, found := {})
    return SimpleNamespace(**found)


def wanted(geometry, arguments):
    """The reference's output for what `arguments` gives."""
    return reference(geometry).run(
        **{name: value for name, value in arguments.items() if name != "output"}
    )
