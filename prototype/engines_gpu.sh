#!/bin/bash
# Section 5 on one H200 (139 GiB; needs about 90 GB of GPU memory), branch h-engines; no network.
# transformers and what it needs: tf-wheels, 17 wheels for Python 3.12, 20.4 MB (safetensors, filelock, fsspec,
# typing_extensions, packaging, tqdm are in there only if the machine lacks them; even tokenizers, 3.4 MB, may be left out).
# Bring: cp -r tf-wheels <checkout>/.tf-wheels (ignore it: echo .tf-wheels >> .git/info/exclude).
python -m pip install -q --no-index --no-deps --target /tmp/tf-site .tf-wheels/*.whl
export PYTHONPATH=scripts:.:/tmp/tf-site
# 0. Smoke: logits, sentinel ids, refusals at real sizes, one MoE layer (34 GB): 1 to 2 min with hopper_fused's nvcc
python -m pytest -q -n 0 tests/solutions/test_transformers.py
# 1. The record: logits (64 and 4096 tokens), prefill of 4096, decode at 1, 8, 32, eager and as a graph; 3 to 5 min (estimate)
python -m harness generate --solutions hopper_fused triton_fused_v2 --output $OUT/deepseek-v3.jsonl
# 2. If the graph is refused ("failed", with why) the rest still counts. Fewer: --layers 1 --turns 1.
# Here, afterwards: put the file at docs/data/generate/deepseek-v3.jsonl; moebench docs serve; commit docs/.
