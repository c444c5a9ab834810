"""Write a checkpoint of random weights that vLLM serves, with the sizes of a real model: experts in
FP8, the rest bf16.

    python checkpoint.py FOLDER --model qwen3-30b

The other scripts in this folder serve it. vLLM's dummy weights (--load-format dummy) would prove
nothing: they are so small that the experts add nothing. `--experts bf16` writes the same numbers
dequantised, exactly: a scale has four significant bits, so that its products with FP8 fit in bf16.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

BLOCK = 128
LARGEST_FP8 = 448
# Values that differ from the defaults of transformers' config of this model_type
QWEN3 = {
    "model_type": "qwen3_moe",
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "rope_theta": 1e6,
}
MODELS = {
    "qwen3-30b": {
        **QWEN3,
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
    },
    "qwen3-235b": {
        **QWEN3,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "num_experts": 128,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
    },
    "qwen3.5-35b": {  # with Qwen3's attention
        **QWEN3,
        "num_experts": 256,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 40,
    },
    "deepseek-v3": {  # without the three dense layers
        "model_type": "deepseek_v3",
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "first_k_dense_replace": 0,
        "num_hidden_layers": 58,
        # ranks that share the experts; only the first rank's are written and served (one_rank.py)
        "expert_ranks": 8,
    },
    "tiny": {
        **QWEN3,
        "hidden_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 1024,
        "num_experts": 32,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 2,
    },
}
# Factors on weights with which the sum over experts is about as large as the layer's input, which
# it is added to
GAINS = {"gate_proj": 1, "up_proj": 1, "down_proj": 4}


def write(
    folder: Path,
    model: str,
    layers: int | None = None,
    experts: str = "fp8",
    written: int | None = None,
) -> None:
    """Write config, tokenizer and weights, on a GPU where there is one.

    The numbers are the same each time on one device.

    Args:
        model: a key of MODELS.
        layers: number of layers; None for all of the model.
        experts: "fp8", with a scale for each 128 x 128 block, or "bf16".
        written: number of layers with weights in the checkpoint, which the server repeats to get
            `layers` (repeat_layers.py); None for all.
    """
    sizes = dict(MODELS[model])
    if layers:
        sizes["num_hidden_layers"] = layers
    if written:
        sizes["written_layers"] = written
    config = AutoConfig.for_model(**sizes, dtype="bfloat16")
    shapes = plain_shapes(config)
    if experts == "fp8":
        matrices = [
            key.removesuffix(".weight")
            for key, shape in shapes.items()
            if len(shape) == 2
        ]
        config.quantization_config = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": matrices,
        }

    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size)
    write_weights(folder, config, shapes, experts)


def plain_shapes(config) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of all weights but the experts'. Set config.architectures."""
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(built).__name__]

    shapes = {}
    for key, tensor in built.state_dict().items():
        if ".experts." not in key:
            shapes[key] = tuple(tensor.shape)
    return shapes


def write_weights(
    folder: Path, config, shapes: dict[str, tuple[int, ...]], experts: str
) -> None:
    """Write a safetensors file for each layer, one for the rest, and their index.

    shapes: name -> shape of all weights but the experts'.
    """
    source = torch.Generator(
        "cuda" if torch.cuda.is_available() else "cpu"
    ).manual_seed(0)
    written = getattr(config, "written_layers", config.num_hidden_layers)
    file_of = {}
    for layer in range(written):
        prefix = f"model.layers.{layer}."
        layer_shapes = {
            key: shape for key, shape in shapes.items() if key.startswith(prefix)
        }
        tensors = plain_weights(layer_shapes, source)
        tensors |= experts_of(config, f"{prefix}mlp.experts", experts, source)
        save(folder / f"{layer}.safetensors", tensors, file_of)

    rest = {
        key: shape
        for key, shape in shapes.items()
        if not key.startswith("model.layers.")
    }
    save(folder / "rest.safetensors", plain_weights(rest, source), file_of)
    index = json.dumps({"metadata": {}, "weight_map": file_of})
    (folder / "model.safetensors.index.json").write_text(index)


def save(file: Path, tensors: dict[str, torch.Tensor], file_of: dict[str, str]) -> None:
    """Write tensors to a file, and set file_of[name] to its name for each."""
    save_file(tensors, file, metadata={"format": "pt"})
    for key in tensors:
        file_of[key] = file.name


def plain_weights(
    shapes: dict[str, tuple[int, ...]], source: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return name -> random bf16 weights, on the CPU, for some shapes.

    A matrix's output is about as large as its input. Norms are 1, biases 0.
    """
    tensors = {}
    for key, shape in shapes.items():
        if len(shape) > 1:
            deviation = 1.0 if "embed_tokens" in key else shape[1] ** -0.5
            values = deviation * normal(shape, source)
        else:
            values = torch.full(shape, 0.0 if key.endswith("bias") else 1.0)
        tensors[key] = values.bfloat16().cpu()
    return tensors


def normal(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    """Return float32 numbers of a standard normal distribution, on the generator's device."""
    return torch.randn(shape, generator=source, device=source.device)


def experts_of(
    config, prefix: str, dtype: str, source: torch.Generator
) -> dict[str, torch.Tensor]:
    """Return name -> weights or scales of the first rank's experts of a layer, on the CPU.

    prefix: of the names. dtype: "fp8" or "bf16"; experts in bf16 have no scales.
    """
    count = getattr(config, "n_routed_experts", None) or config.num_experts
    count //= getattr(config, "expert_ranks", 1)
    up = (count, config.moe_intermediate_size, config.hidden_size)
    down = (count, config.hidden_size, config.moe_intermediate_size)

    tensors = {}
    for name, gain in GAINS.items():
        shape = down if name == "down_proj" else up
        weights, scales = projections(shape, gain, dtype, source)
        for number in range(count):
            key = f"{prefix}.{number}.{name}.weight"
            tensors[key] = weights[number]
            if dtype == "fp8":
                tensors[f"{key}_scale_inv"] = scales[number]
    return tensors


def projections(
    shape: tuple[int, int, int], gain: float, dtype: str, source: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one of the three matrices of all experts and its scales, on the CPU.

    shape: (E, N, K). gain: how much larger the output is than the input. dtype: as in `experts_of`.
    """
    deviation = gain * shape[2] ** -0.5
    blocks, scales = quantised_blocks(shape, deviation, source)
    if dtype == "bf16":
        blocks = (blocks.float() * scales).bfloat16()

    weights = blocks.flatten(3).flatten(1, 2)
    scale_of_block = scales[:, :, 0, :, 0].contiguous()
    return weights.cpu(), scale_of_block.cpu()


def quantised_blocks(
    shape: tuple[int, int, int], deviation: float, source: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random FP8 weights in blocks, [E, N / 128, 128, K / 128, 128], and their scales.

    shape: (E, N, K). deviation: standard deviation. The scales are float32 [E, N / 128, 1, K / 128,
    1]. A scale is up to twice what it must be, so that scales vary as in a trained model.
    """
    values = deviation * normal(shape, source)
    in_columns = values.unflatten(2, (-1, BLOCK))
    blocks = in_columns.unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax((2, 4), keepdim=True)
    factor = 1 + torch.rand(largest.shape, generator=source, device=source.device)
    scale = with_four_bits(largest / LARGEST_FP8 * factor)

    quantised = (blocks / scale).to(torch.float8_e4m3fn)
    return quantised, scale


def with_four_bits(numbers: torch.Tensor) -> torch.Tensor:
    """Return numbers rounded up to four significant bits."""
    fraction, exponent = torch.frexp(numbers)
    rounded = (16 * fraction).ceil() / 16
    return torch.ldexp(rounded, exponent)


def write_tokenizer(folder: Path, words: int) -> None:
    """Write a tokenizer with a word for each token, so that a prompt of n words has n tokens."""
    vocabulary = {f"w{number}": number for number in range(words)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "w0", "vocab": vocabulary},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=MODELS, default="qwen3-30b")
    parser.add_argument("--layers", type=int, help="default: all of the model")
    parser.add_argument(
        "--written", type=int, help="layers that are written; default: all"
    )
    parser.add_argument("--experts", choices=("fp8", "bf16"), default="fp8")
    args = parser.parse_args()
    write(args.folder, args.model, args.layers, args.experts, args.written)


if __name__ == "__main__":
    main()
