"""build.py SOURCES OUT [--jobs N] [shape ...]: compile each shape into OUT/<shape>.so, with ptxas' report in OUT/<shape>.log."""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shapes import SHAPES, defines

parser = argparse.ArgumentParser()
parser.add_argument("sources", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--jobs", type=int, default=1)
parser.add_argument("--files", nargs="*")
parser.add_argument("--extra", nargs="*", default=[], help="further options of nvcc, without the leading dash")
parser.add_argument("shapes", nargs="*")
args = parser.parse_args()

from tvm_ffi import libinfo  # noqa: E402

include = libinfo.find_include_path()
library = Path(libinfo.find_libtvm_ffi())
flags = ["-std=c++17", "-O2", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-Xcompiler", "-fPIC"]
flags += ["-I", include, "-I", libinfo.find_dlpack_include_path(), *["-" + option for option in args.extra]]
args.out.mkdir(parents=True, exist_ok=True)


def compile_one(job):
    shape, source = job
    target = args.out / f"{shape}.{source.stem}.o"
    found = subprocess.run(
        ["nice", "-n", "15", "nvcc", *flags, *(defines(shape) if shape != "base" else []), "-c", str(source), "-o", str(target)],
        capture_output=True,
        text=True,
    )
    return shape, source.stem, found.returncode, found.stdout + found.stderr


shapes = args.shapes or list(SHAPES)
sources = sorted(args.sources.glob("*.cu"))
if args.files:
    sources = [source for source in sources if source.stem in args.files]
failed = set()
with ThreadPoolExecutor(args.jobs) as pool:
    for shape, stem, code, text in pool.map(compile_one, [(s, f) for s in shapes for f in sources]):
        with (args.out / f"{shape}.log").open("a") as log:
            log.write(f"== {stem}\n{text}\n")
        if code:
            failed.add(shape)
            print(shape, stem, text[-2500:], flush=True)
            continue
        used = [line.split("Used")[1].split(",")[0].strip() for line in text.splitlines() if "Used" in line]
        spill = [line.strip() for line in text.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
        print(shape, stem, used, *spill, flush=True)
    for shape in shapes:
        if shape in failed:
            continue
        objects = [str(o) for o in sorted(args.out.glob(f"{shape}.*.o"))]
        link = ["nvcc", "-shared", "-Xlinker", "-Bsymbolic", *objects, "-o", str(args.out / f"{shape}.so")]
        link += ["-L", str(library.parent), "-ltvm_ffi"]
        found = subprocess.run(link, capture_output=True, text=True)
        if found.returncode:
            print(shape, "link", found.stderr[-1500:])
sys.exit(bool(failed))
