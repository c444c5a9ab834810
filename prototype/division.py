"""division.py: each shape's division of work, asked on the host as tests/solutions/test_hopper_division.py does for the first one."""

import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import triton
from shapes import SHAPES, defines

root = Path(__file__).resolve().parents[1]
cuda = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
random.seed(0)
for name, (_, local, top_k, _, _, hidden, inter, _) in SHAPES.items():
    with tempfile.TemporaryDirectory() as folder:
        built = f"{folder}/division"
        includes = [f"-I{p}" for p in (root / "tests/samples/cuda_on_host", cuda, root / "solutions/hopper_fused")]
        subprocess.run(["c++", "-std=c++17", "-O1", "-w", *includes, *defines(name), root / "tests/samples/hopper_division.cc", "-o", built], check=True)

        def ask(*question):
            out = subprocess.run([built, *map(str, question)], check=True, capture_output=True, text=True).stdout
            return [tuple(map(int, line.split())) for line in out.splitlines()]

        ((most,),) = ask("most")
        units = inter // 32
        for blocks in (132, 144):
            for segments in {0, 1, 2, 3, local // 2, most, *random.sample(range(most), 6)}:
                tiles = ask("few", blocks, segments)
                done = Counter((n, u + i) for _, n, _, u, w in tiles for i in range(w))
                assert done == {(n, u): 1 for n in range(segments) for u in range(units)}, (name, blocks, segments)
        for trial in range(6):
            rows = [random.choice([0, 1, 5, 16, 17, 64, 65, 128, 129, 200, 256, 257, 900]) for _ in range(local)]
            for how, columns in (("walk", inter // 128), ("draw", hidden // 256), ("draw", hidden // 512)):
                if columns % 2:
                    continue
                items = ask(how, 132, columns, *rows)
                done = Counter((e, c, first + r) for _, e, c, first, n, _, _, _ in items for r in range(0, n, 16))
                assert done == {(e, c, r): 1 for e in range(local) for c in range(columns) for r in range(0, -(-rows[e] // 16) * 16, 16)}, (name, how)
        print(name, "covers every unit, row and column once; most segments", most)
sys.exit(0)
