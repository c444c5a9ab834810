"""Build solutions that compile for minutes before any is judged, and say so before it starts."""

import time
from collections.abc import Iterable, Iterator

from flashinfer_bench import Definition, Solution
from flashinfer_bench.compile import BuilderRegistry, BuildError


def build_ahead(definition: Definition, notes: Iterable[tuple[Solution, str]]) -> Iterator[str]:
    """Build each solution; yield a line for the user before and after. A note says what the first use takes.

    What is compiled stays on disk, so the runner's own build finds it there. A build that fails is only reported here:
    the run judges it COMPILE_ERROR.
    """
    for solution, note in notes:
        yield f"{solution.name}: building; on first use it {note}"
        start = time.monotonic()
        try:
            BuilderRegistry.get_instance().build(definition, solution)
            outcome = "built"
        except BuildError as error:
            outcome = f"not built: {str(error).splitlines()[0]}"
        yield f"{solution.name}: {outcome} in {time.monotonic() - start:.1f} s, apart from the runs below"
