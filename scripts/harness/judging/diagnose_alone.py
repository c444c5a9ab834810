"""Run a solution and the reference once more on a workload and print what is wrong, for one that FIB's worker judged.

    python -m harness.judging.diagnose_alone < JOB    (JSON: geometry, solution, workload, tolerance, device)

A process of its own, since FIB's worker keeps the outputs to itself and a wrong kernel may leave a CUDA context broken.
The last line of its output is a JSON list of sentences. Not run on a GPU yet.
"""

import json
import subprocess
import sys

from flashinfer_bench import Solution, Workload
from flashinfer_bench.bench.utils import load_safetensors
from flashinfer_bench.compile import BuilderRegistry

from harness.core import paths
from harness.judging import diagnosis
from harness.judging.calling import call, call_both, seeded_inputs
from harness.judging.tolerances import TOLERANCES, Tolerance, judged
from harness.operators.catalogue import definition


def in_a_process(
    geometry: str, solution: Solution, workload: Workload, tolerance: Tolerance, device: str, seconds: int
) -> list[str]:
    """Sentences about the solution's output on the workload, or why there are none."""
    job = {"geometry": geometry, "tolerance": tolerance.name, "device": device}
    job |= {"solution": solution.model_dump(mode="json"), "workload": workload.model_dump(mode="json")}
    command = [sys.executable, "-m", "harness.judging.diagnose_alone"]
    try:
        done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return [f"no diagnosis: no result after {seconds} s"]
    if done.returncode:
        return [f"no diagnosis: {(done.stderr.strip().splitlines() or ['the process died'])[-1]}"]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    job = json.load(sys.stdin)
    full, workload, device = definition(job["geometry"]), Workload(**job["workload"]), job["device"]
    registry = BuilderRegistry.get_instance()
    reference = registry.build_reference(full)
    inputs = seeded_inputs(full, workload, 1, device, load_safetensors(full, workload, paths.ROOT))[0]
    expected = call(full, reference, inputs, device)
    output, returned = call_both(full, registry.build(full, Solution(**job["solution"])), inputs, device)
    known = TOLERANCES[job["tolerance"]]
    comparable = (output.shape, output.dtype) == (expected.shape, expected.dtype)
    if comparable and judged(output, expected, known)[1] is None:
        found = ["this time the output is within the tolerance: does it differ from run to run?"]
    else:
        found = diagnosis.diagnose(full, inputs, output, expected, known, returned)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
