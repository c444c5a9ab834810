"""All that is generated in README.md and docs/: tables in marked blocks, examples of commands, and figures.

In a page, `<!-- generated: NAME -->` and `<!-- end of NAME -->` hold a block that BLOCKS lists; `<!-- output of:
COMMAND -->` and `<!-- end of output -->` hold the output of a command, or of several, one a line; a Python block that
begins with `# NAME.py` is a script of that name for them. FIGURES lists the figures and the pages that show them.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.core.names import unknown
from harness.operators.catalogue import definition_name
from harness.packing import pack
from harness.profiling.record import read_records
from harness.report import compiled, profiles, studies, sweep, tuning
from harness.report.blocks import (
    clocks,
    examples,
    expert_parallel,
    fleet,
    generation,
    memory,
    models,
    results,
    routed,
    served,
    solutions,
    tolerances,
)
from harness.report.blocks.examples import Moebench
from harness.report.comparison import choice_table
from harness.report.figures import models as models_figure
from harness.report.figures import roofline, speed, stages
from harness.report.figures import served as served_figure
from harness.report.figures import sweep as sweep_figure
from harness.report.figures.picture import Picture
from harness.results import comparison
from harness.results.comparison import Comparison
from harness.results.model_names import layers

MARKER = re.compile(r"^<!-- (?:generated|output of|end of)\b(?s:.*?) -->$", re.M)
PIECE = re.compile(  # two markers that belong together, and what is between them
    r"(?P<begin>^<!-- (?:generated: (?P<block>.+?)|output of: (?P<commands>(?s:.+?))) -->$)"
    r"(?P<content>(?:(?!^<!-- (?:generated|output of|end of))(?s:.))*)"
    r"(?P<end>^<!-- end of (?(block)(?P=block)|output) -->$)",
    re.M,
)
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
SCRIPT = re.compile(r"^```python\n(# (\w+\.py)\n(?s:.*?))^```$", re.M)
PROMPT = re.compile(r"^ *\$ (.*)", re.M)
FAULTS = (UserError, ValueError, OSError)  # of a record, a trace or an example

Blocks = dict[tuple[str, str], Callable[[], str]]  # (page, a path from the root; block's name) -> its Markdown
Figures = tuple[tuple[tuple[str, ...], Callable[[], list[Picture]]], ...]  # the pages that show pictures, and those


@cache
def recorded() -> Comparison:
    """The traces of the full FP8 layer."""
    return comparison.recorded([definition_name("full")])


@cache
def of_models() -> Comparison:
    """The traces of every model's layer."""
    return comparison.recorded([layer.definition for layer in layers()])


BLOCKS: Blocks = {
    ("README.md", "answer"): lambda: f"{results.answer(recorded())}\n\n{served.in_short()}".rstrip(),
    ("README.md", "hardware"): lambda: solutions.gpus(recorded()),
    ("README.md", "results"): lambda: results.block(recorded()),
    ("README.md", "models"): lambda: models.block(of_models()),
    ("docs/engines.md", "gain"): lambda: results.gain(recorded()),
    ("docs/compare.md", "choice"): lambda: choice_table(recorded()).markdown(),
    ("docs/tolerances.md", "passes"): lambda: tolerances.block(recorded()),
    ("docs/backends.md", "solutions"): lambda: solutions.block(recorded()),
    ("docs/models.md", "models"): lambda: models.block(of_models()),
    ("docs/models.md", "sizes"): models.sizes,
    ("docs/models.md", "passes"): lambda: models.passes(of_models()),
    ("docs/models.md", "bounds"): models.bounds,
    ("docs/models.md", "speeds"): lambda: models.speeds(of_models()),
    ("docs/models.md", "peers"): lambda: models.peers(of_models()),
    ("docs/models.md", "routed"): lambda: routed.block(comparison.recorded(routed.definitions())),
    ("docs/clocks.md", "gpu clock"): lambda: clocks.block(comparison.recorded([definition_name("full")], clock="gpu")),
    ("docs/memory.md", "memory"): memory.block,
    ("docs/serve.md", "generation"): generation.block,
    ("docs/mma_fused.md", "compiled"): compiled.block,
    ("docs/mma_fused.md", "other GPUs"): compiled.bounds,
    ("docs/mma_fused.md", "many tokens"): compiled.many,
    ("docs/served.md", "served"): served.block,
    ("docs/fleet.md", "schedule"): fleet.block,
    ("docs/ep.md", "status"): lambda: expert_parallel.status(expert_parallel.recorded()),
    ("docs/ep.md", "measured"): lambda: expert_parallel.measured(expert_parallel.recorded()),
    ("docs/ep.md", "modelled"): lambda: expert_parallel.modelled(expert_parallel.recorded()),
    ("docs/sweep.md", "sweeps"): sweep.block,
    ("docs/profile.md", "profile"): profiles.block,
    ("docs/tune.md", "tuning"): tuning.block,
    ("docs/mxfp8.md", "summary"): lambda: studies.summary(studies.MXFP8),
    ("docs/mxfp8.md", "calls"): lambda: studies.calls(studies.MXFP8),
    ("docs/w16a16.md", "summary"): lambda: studies.summary(studies.BF16),
    ("docs/w16a16.md", "gemm1"): lambda: studies.gemm1(studies.BF16),
    ("docs/w16a16.md", "calls"): lambda: studies.calls(studies.BF16),
}
FIGURES: Figures = (
    (("README.md", "docs/compare.md"), lambda: speed.pictures(recorded())),
    (("docs/compare.md",), lambda: roofline.pictures(recorded())),
    (("docs/compare.md",), lambda: stages.pictures(read_records(paths.PROFILES))),
    (("docs/models.md",), lambda: models_figure.pictures(of_models())),
    (("docs/served.md",), lambda: served_figure.pictures(served.recorded())),
    (("docs/sweep.md",), lambda: sweep_figure.pictures(sweep.recorded())),
    (("docs/w16a16.md",), lambda: speed.pictures(studies.BF16.traces(), "w16a16.svg")),
)
PREPARE = {"docs/apply.md": lambda: pack.pack_here([])}  # before a page's examples


def all_pages(root: Path = paths.ROOT) -> list[str]:
    return ["README.md", *sorted(path.relative_to(root).as_posix() for path in (root / "docs").glob("**/*.md"))]


def chosen_pages(wanted: list[str]) -> list[str]:
    """Pages by file name or stem, which several may share; all without any. Raises UserError for an unknown one."""
    pages, stems = all_pages(), {Path(name).stem for name in wanted}
    known = sorted({Path(page).stem for page in pages})  # a page and its history have the same
    for stem in sorted(stems.difference(known)):
        raise UserError(unknown("page", stem, known))
    return [page for page in pages if not wanted or Path(page).stem in stems]


def marker_faults(page: str, text: str, blocks: Blocks) -> list[str]:
    """A line for each marker without its counterpart; else for each block that is not in one of page and registry."""
    rest = PIECE.sub(lambda piece: "\n" * piece[0].count("\n"), text)
    if unpaired := list(MARKER.finditer(rest)):
        return [f"line {rest.count(chr(10), 0, m.start()) + 1}: {m[0]} has no counterpart" for m in unpaired]
    present = {piece["block"] for piece in PIECE.finditer(text) if piece["block"]}
    registered = {name for where, name in blocks if where == page}
    faults = [f"the marker <!-- generated: {name} --> is missing" for name in sorted(registered - present)]
    faults += [f"block {name!r} is not registered" for name in sorted(present - registered)]
    for shown in filter(None, map(PROMPT.search, FENCE.findall(rest))):
        faults.append(f"`{shown[1]}` shows output, but is no example: put it into <!-- output of: COMMAND -->")
    return faults


def update_page(page: str, check: bool, moebench: Moebench, root: Path, blocks: Blocks) -> list[str]:
    """As `update`, of one page."""
    text = (root / page).read_text()
    problems = marker_faults(page, text, blocks)

    def renew(piece: re.Match) -> str:
        if piece["block"] and (page, piece["block"]) not in blocks:
            return piece[0]
        what = f"block {piece['block']!r}" if piece["block"] else f"example `{piece['commands'].splitlines()[-1]}`"
        try:
            made = blocks[page, piece["block"]]() if piece["block"] else examples.block(piece["commands"], moebench)
        except FAULTS as error:
            problems.append(f"{what}: {str(error).splitlines()[0]}")
            return piece[0]
        new = f"\n\n{made}\n\n"
        if check and new != piece["content"]:
            problems.append(f"{what} is out of date: run `moebench docs {Path(page).stem}`")
        return piece["begin"] + new + piece["end"]

    with examples.working_folder():
        if page in PREPARE:
            PREPARE[page]()
        for source, name in SCRIPT.findall(text):
            Path(name).write_text(source)
        new = PIECE.sub(renew, text)
    if not check:
        write_atomically(root / page, new)
    return [f"{page}: {problem}" for problem in problems]


def update_figures(pages: list[str], check: bool, root: Path, figures: Figures) -> list[str]:
    """As `update`, of the figures that these pages show. A figure in docs/ that nothing makes is a problem, too."""
    problems, made, complete = [], set(), set(pages) == set(all_pages(root))
    folder = root / "docs"
    for shown_by, make in figures:
        if not (wanted := [page for page in shown_by if page in pages]):
            continue
        try:
            for figure in make():
                made.add(figure.file)
                if not check and not figure.is_in(folder):
                    write_atomically(folder / figure.file, figure.svg())
                elif not figure.is_in(folder):
                    run = f"moebench docs {Path(wanted[0]).stem}"
                    problems.append(f"docs/{figure.file}: the figure is out of date: run `{run}`")
        except FAULTS as error:
            problems.append(f"{wanted[0]}: figures: {str(error).splitlines()[0]}")
            complete = False
    stray = {path.name for path in folder.glob("*.svg")} - made if complete else ()
    return problems + [f"docs/{name}: nothing makes this figure: remove it" for name in sorted(stray)]


def update(
    pages: list[str],
    check: bool,
    moebench: Moebench,
    root: Path = paths.ROOT,
    blocks: Blocks = BLOCKS,
    figures: Figures = FIGURES,
) -> list[str]:
    """Write what is generated in the pages, or only check it. moebench: harness.cli.main, for the examples.

    Returns a line for each thing that could not be made or, with check, that is out of date; the rest is done all
    the same.
    """
    problems = [line for page in pages for line in update_page(page, check, moebench, root, blocks)]
    return problems + update_figures(pages, check, root, figures)
