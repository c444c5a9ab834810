"""build.py OUT: compile variants here; OUT/<shape>-<variant>.so."""
import subprocess, sys, shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tvm_ffi import libinfo
tree, out, jobs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
shapes = sys.argv[4].split(",")
variants = dict(v.split(":") if ":" in v else (v, "") for v in sys.argv[5].split(","))  # name:-Dflag+-Dflag
varying = sys.argv[6].split(",") if len(sys.argv) > 6 else []
out.mkdir(parents=True, exist_ok=True)
lib = Path(libinfo.find_libtvm_ffi())
src = tree / "solutions/hopper_fused"
flags = ["-std=c++17", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-Xcompiler", "-fPIC", "-I", libinfo.find_include_path(), "-I", libinfo.find_dlpack_include_path()]
def one(job):
    shape, variant, cu = job
    folder = out / f"src-{shape}"
    o = out / f"{shape}-{variant}-{cu.stem}.o"
    if o.exists(): return
    inc = [f"-I{d}" for d in (folder, *[src / x for x in ("common", "few_tokens", "many_tokens")])]
    extra = [f for f in variants.get(variant, "").split("+") if f]
    import time; t=time.time()
    r = subprocess.run(["nvcc", *flags, *inc, *extra, "-c", str(cu), "-o", str(o)], capture_output=True, text=True)
    spill = [l.strip() for l in r.stderr.splitlines() if "spill" in l and " 0 bytes spill stores" not in l]
    print(shape, variant, cu.stem, r.returncode, f"{time.time()-t:.0f}s", spill, r.stderr[-2000:] if r.returncode else "", flush=True)
jobl = []
for shape in shapes:
    f = out / f"src-{shape}"; f.mkdir(exist_ok=True)
    if not (f / "problem.cuh").exists():
        sys.path[:0] = [sys.argv[1] + "/scripts", sys.argv[1]]
        from harness.packing import problem
        (f / "problem.cuh").write_text(problem.source("problem.cuh", shape)); (f / "interface.cuh").write_text(problem.source("interface.cuh", shape))
    for cu in sorted(src.rglob("*.cu")):
        for v in (variants if cu.stem in varying else ["all"]):
            jobl.append((shape, v, cu))
with ThreadPoolExecutor(jobs) as pool: list(pool.map(one, jobl))
for shape in shapes:
    for v in variants:
        objs = [str(out / f"{shape}-{v if cu.stem in varying else 'all'}-{cu.stem}.o") for cu in sorted(src.rglob("*.cu"))]
        r = subprocess.run(["nvcc", "-shared", "-Xlinker", "-Bsymbolic", *objs, "-o", str(out / f"{shape}-{v}.so"), "-L", str(lib.parent), "-ltvm_ffi"], capture_output=True, text=True)
        if r.returncode: print(r.stderr[-1000:])
