"""Write a checkpoint of random weights that vLLM serves, with the sizes of a real model: experts in
FP8, the rest bf16.

    python checkpoint.py FOLDER --model qwen3-30b

vLLM's own dummy weights prove nothing: they are so small that the experts add nothing. `--experts
bf16` writes the same numbers dequantised, which changes none: a scale has four significant bits, so
that its products with FP8 fit in bf16.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

BLOCK = 128
ATTENTION = dict(
    hidden_size=2048, num_attention_heads=32, num_key_value_heads=4, head_dim=128, rope_theta=1e6
)
QWEN3 = ATTENTION | dict(model_type="qwen3_moe", norm_topk_prob=True, max_position_embeddings=40960)
SMALL = QWEN3 | dict(
    hidden_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=1024
)
DEEPSEEK = dict(
    model_type="deepseek_v3",
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    first_k_dense_replace=0,
)
# What transformers' config of the type does not have by default. expert_ranks: as many share the
# experts; only those of the first one are written, and served (one_rank.py).
MODELS = {
    "qwen3-30b": QWEN3 | dict(num_experts=128, moe_intermediate_size=768, num_hidden_layers=48),
    # with Qwen3's attention
    "qwen3.5-35b": QWEN3 | dict(num_experts=256, moe_intermediate_size=512, num_hidden_layers=40),
    "deepseek-v3": DEEPSEEK
    | dict(num_hidden_layers=58, expert_ranks=8),  # without its three layers that are dense
    "tiny": SMALL | dict(num_experts=32, moe_intermediate_size=256, num_hidden_layers=2),
}
GAINS = {
    "gate_proj": 1,
    "up_proj": 1,
    "down_proj": 4,
}  # the sum over experts is then about as large as what it adds to


def write(folder: Path, model: str, layers: int | None = None, experts: str = "fp8") -> None:
    """Write config, tokenizer and weights, on a GPU where there is one; the same numbers each time
    on one device.

    Args:
        model: one of MODELS.
        layers: as many of them; None for all.
        experts: "fp8", in blocks of 128 x 128, or "bf16".
    """
    sizes = MODELS[model] | ({"num_hidden_layers": layers} if layers else {})
    config = AutoConfig.for_model(**sizes, dtype="bfloat16")
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(built).__name__]
    shapes = {
        key: tuple(tensor.shape)
        for key, tensor in built.state_dict().items()
        if ".experts." not in key
    }
    if experts == "fp8":
        kept = [key.removesuffix(".weight") for key, shape in shapes.items() if len(shape) == 2]
        config.quantization_config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        config.quantization_config |= {
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": kept,
        }
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size)
    source = torch.Generator("cuda" if torch.cuda.is_available() else "cpu").manual_seed(0)
    files = {}
    for part in (*range(config.num_hidden_layers), "rest"):
        prefix = "" if part == "rest" else f"model.layers.{part}."
        tensors = {
            key: plain(key, shapes.pop(key), source)
            for key in list(shapes)
            if key.startswith(prefix)
        }
        if prefix:
            tensors |= experts_of(config, f"{prefix}mlp.experts", experts, source)
        save_file(tensors, folder / f"{part}.safetensors", metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, f"{part}.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files})
    )


def plain(key: str, shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    """A weight in bf16, such that what it gives is about as large as what it gets: 1 for a norm, 0
    for a bias.
    """
    if len(shape) == 1:
        return torch.full(shape, 0.0 if key.endswith("bias") else 1.0, dtype=torch.bfloat16)
    deviation = 1.0 if "embed_tokens" in key else shape[1] ** -0.5
    return (torch.randn(shape, generator=source, device=source.device) * deviation).bfloat16().cpu()


def experts_of(config, prefix: str, dtype: str, source: torch.Generator) -> dict[str, torch.Tensor]:
    """Name -> weight or scale of a layer's experts, those of the first rank."""
    count = getattr(config, "n_routed_experts", None) or config.num_experts
    count //= getattr(config, "expert_ranks", 1)
    hidden, inner, found = config.hidden_size, config.moe_intermediate_size, {}
    for name, gain in GAINS.items():
        rows, columns = (hidden, inner) if name == "down_proj" else (inner, hidden)
        values = (
            torch.randn(count, rows, columns, generator=source, device=source.device)
            * gain
            * columns**-0.5
        )
        values = values.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
        largest = values.abs().amax((2, 4), keepdim=True)
        # Up to twice what it must be, so that scales differ as in a trained model.
        scale = (
            largest / 448 * (1 + torch.rand(largest.shape, generator=source, device=source.device))
        )
        fraction, exponent = torch.frexp(scale)
        scale = torch.ldexp((fraction * 16).ceil() / 16, exponent)
        quantised = (values / scale).to(torch.float8_e4m3fn)
        if dtype == "bf16":
            quantised = (quantised.float() * scale).bfloat16()
        else:
            of_blocks = scale[:, :, 0, :, 0].cpu()
            found |= {
                f"{prefix}.{n}.{name}.weight_scale_inv": of_blocks[n].contiguous()
                for n in range(count)
            }
        weights = quantised.flatten(3).flatten(1, 2).cpu()
        found |= {f"{prefix}.{n}.{name}.weight": weights[n] for n in range(count)}
    return found


def write_tokenizer(folder: Path, words: int) -> None:
    """A word for each token, so that a prompt of n words has n tokens."""
    model = {"type": "WordLevel", "unk_token": "w0", "vocab": {f"w{n}": n for n in range(words)}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=MODELS, default="qwen3-30b")
    parser.add_argument("--layers", type=int, help="default: all of the model")
    parser.add_argument("--experts", choices=("fp8", "bf16"), default="fp8")
    write(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
