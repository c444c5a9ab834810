"""Solutions that compile for minutes on first use: build them before any is timed, and tell the user."""

import time

from flashinfer_bench import Definition, Solution
from flashinfer_bench.compile import BuilderRegistry, BuildError
from rich.console import Console


def build_ahead(definition: Definition, solutions: list[Solution], notes: dict[str, str], console: Console) -> None:
    """Build each solution that has a note, a sentence on what its first use takes.

    What is compiled stays on disk, so the runner's own build finds it there. A build that fails is only told here:
    the run reports it as COMPILE_ERROR.
    """
    for solution in solutions:
        if solution.name not in notes:
            continue
        console.print(f"{solution.name}: building; on first use it {notes[solution.name]}", markup=False)
        start = time.monotonic()
        try:
            BuilderRegistry.get_instance().build(definition, solution)
            outcome = "built"
        except BuildError as error:
            outcome = f"not built: {str(error).splitlines()[0]}"
        console.print(f"{solution.name}: {outcome} in {time.monotonic() - start:.1f} s, apart from the runs below")
