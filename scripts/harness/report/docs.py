"""All that is generated in README.md and docs/: tables in marked blocks, examples of commands, and figures.

In a page, `<!-- generated: NAME -->` and `<!-- end of NAME -->` hold a block that BLOCKS lists; `<!-- output of:
COMMAND -->` and `<!-- end of output -->` hold the output of a command, or of several, one a line. FIGURES lists the
figures and the pages that show them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from definitions.moe_fp8_block_scale import definition_name
from harness.core import paths
from harness.core.atomic_file import write_atomically
from harness.core.errors import UserError
from harness.packing import pack
from harness.profiling.record import read_records
from harness.report import profiles, studies, sweep, tuning
from harness.report.blocks import examples, results, solutions
from harness.report.blocks.examples import Moebench
from harness.report.figures import bf16, roofline, speed, stages
from harness.report.figures import sweep as sweep_figure
from harness.report.figures.picture import Picture
from harness.results import comparison
from harness.results.comparison import Comparison

MARKER = re.compile(
    r"^<!-- (?:generated: (?P<block>.+?)|output of: (?P<command>(?s:.+?))|end of (?P<end>.+?)) -->$", re.M
)
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)
FAULTS = (UserError, ValueError, OSError)  # of a record, a trace or an example


@dataclass(frozen=True)
class Block:
    """The block called `name` in a page, a path relative to the root; render returns its Markdown."""

    page: str
    name: str
    render: Callable[[], str]


@dataclass(frozen=True)
class Figures:
    """Figures in docs/ that `pages` show; make returns them, undrawn."""

    pages: tuple[str, ...]
    make: Callable[[], list[Picture]]


@dataclass(frozen=True)
class Piece:
    """A generated part of a page: a block's name or an example's command, and where its content lies in the text."""

    kind: str
    name: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"block {self.name!r}" if self.kind == "block" else f"example `{self.name.splitlines()[-1]}`"


@cache
def recorded() -> Comparison:
    """The traces of the full FP8 layer."""
    return comparison.recorded(definition_name("full"))


BLOCKS = (
    Block("README.md", "results", lambda: results.block(recorded())),
    Block("docs/backends.md", "solutions", lambda: solutions.block(recorded())),
    Block("docs/sweep.md", "sweeps", sweep.block),
    Block("docs/profile.md", "profile", profiles.block),
    Block("docs/tune.md", "tuning", tuning.block),
    Block("docs/mxfp8.md", "mxfp8", studies.mxfp8),
    Block("docs/w16a16.md", "summary", studies.bf16_summary),
    Block("docs/w16a16.md", "counters", studies.bf16_gemm1),
    Block("docs/w16a16.md", "stages", studies.bf16_launches),
)
FIGURES = (
    Figures(("README.md", "docs/compare.md"), lambda: speed.pictures(recorded(), "relaxed")),
    Figures(("docs/compare.md",), lambda: roofline.pictures(recorded(), "relaxed")),
    Figures(("docs/compare.md",), lambda: stages.pictures(read_records(paths.PROFILES))),
    Figures(("docs/sweep.md",), lambda: sweep_figure.pictures(sweep.recorded())),
    Figures(("docs/w16a16.md",), lambda: bf16.pictures(studies.bf16_traces())),
)
PREPARE = {"docs/apply.md": lambda: pack.pack_here([])}  # before a page's examples


def all_pages(root: Path = paths.ROOT) -> list[str]:
    return ["README.md", *sorted(path.relative_to(root).as_posix() for path in (root / "docs").glob("**/*.md"))]


def chosen_pages(wanted: list[str], root: Path = paths.ROOT) -> list[str]:
    """Pages by file name or stem, which several may share; all without any. Raises UserError for an unknown one."""
    pages, stems = all_pages(root), {Path(name).stem for name in wanted}
    if unknown := sorted(stems - {Path(page).stem for page in pages}):
        raise UserError(f"no page {unknown[0]!r}, want names from README.md and docs/: {', '.join(pages)}")
    return [page for page in pages if not wanted or Path(page).stem in stems]


def pieces(text: str) -> Iterator[Piece]:
    """The generated parts of a page, in order. Raises UserError for a marker without its counterpart."""
    begun = None
    for marker in MARKER.finditer(text):
        shown = f"line {text.count(chr(10), 0, marker.start()) + 1}: {marker[0]}"
        if marker["end"] is None:
            if begun:
                raise UserError(f"{shown}: {begun[0]!r} has not ended")
            begun = ("output" if marker["command"] else marker["block"], marker)
        elif begun is None or begun[0] != marker["end"]:
            raise UserError(f"{shown}: nothing of that name has begun")
        else:
            first = begun[1]
            kind = "example" if first["command"] else "block"
            yield Piece(kind, first["command"] or first["block"], first.end(), marker.start())
            begun = None
    if begun:
        raise UserError(f"{begun[1][0]}: has no end")


def unregistered_outputs(text: str, found: list[Piece]) -> list[str]:
    """A line for each console block, one with a command after a prompt, that is not the content of an example."""
    inside = [(piece.start, piece.end) for piece in found if piece.kind == "example"]
    faults = []
    for fence in FENCE.finditer(text):
        if re.search(r"^ *\$ ", fence[0], re.M) and not any(a <= fence.start() < b for a, b in inside):
            command = re.search(r"^ *\$ (.*)", fence[0], re.M)[1]
            faults.append(f"`{command}` shows output, but is no example: put it into <!-- output of: COMMAND -->")
    return faults


def renewed(page: str, text: str, blocks: tuple[Block, ...], moebench: Moebench) -> tuple[str, list[str], list[str]]:
    """(the page's text as it should be, what of it is out of date, faults), the last two a line each."""
    try:
        found = list(pieces(text))
    except UserError as error:
        return text, [], [str(error)]
    renders = {block.name: block.render for block in blocks if block.page == page}
    present = [piece.name for piece in found if piece.kind == "block"]
    faults = [f"the marker <!-- generated: {name} --> is missing" for name in renders if name not in present]
    faults += [f"block {name!r} is not registered" for name in present if name not in renders]
    faults += unregistered_outputs(text, found)
    outdated, parts, at = [], [], 0
    with examples.working_folder():
        if page in PREPARE and any(piece.kind == "example" for piece in found):
            PREPARE[page]()
        for piece in found:
            old = text[piece.start : piece.end]
            new = old
            try:
                if piece.kind == "example":
                    new = f"\n\n{examples.console_block(piece.name, moebench)}\n\n"
                elif piece.name in renders:
                    new = f"\n\n{renders[piece.name]()}\n\n"
            except FAULTS as error:
                faults.append(f"{piece}: {str(error).splitlines()[0]}")
            if new != old:
                outdated.append(str(piece))
            parts += [text[at : piece.start], new]
            at = piece.end
    return "".join([*parts, text[at:]]), outdated, faults


def update(
    pages: list[str],
    check: bool,
    moebench: Moebench,
    root: Path = paths.ROOT,
    blocks: tuple[Block, ...] = BLOCKS,
    figures: tuple[Figures, ...] = FIGURES,
) -> list[str]:
    """Write what is generated in the pages, or only check it. moebench: harness.cli.main, for the examples.

    Returns a line for each thing that could not be made or, with check, that is out of date; the rest is done all
    the same.
    """
    problems = []
    for page in pages:
        old = (root / page).read_text()
        new, outdated, faults = renewed(page, old, blocks, moebench)
        problems += [f"{page}: {fault}" for fault in faults]
        if check:
            stem = Path(page).stem
            problems += [f"{page}: {what} is out of date: run `moebench docs {stem}`" for what in outdated]
        else:
            write_atomically(root / page, new)
    return problems + update_figures(pages, check, root, figures)


def update_figures(pages: list[str], check: bool, root: Path, figures: tuple[Figures, ...]) -> list[str]:
    """As `update`, of the figures that these pages show. A figure in docs/ that nothing makes is a problem, too."""
    problems, made, complete = [], set(), set(pages) == set(all_pages(root))
    folder = root / "docs"
    for family in figures:
        shown_by = [page for page in family.pages if page in pages]
        if not shown_by:
            continue
        try:
            for figure in family.make():
                made.add(figure.file)
                if figure.is_in(folder):
                    continue
                if check:
                    run = f"moebench docs {Path(shown_by[0]).stem}"
                    problems.append(f"docs/{figure.file}: the figure is out of date: run `{run}`")
                else:
                    write_atomically(folder / figure.file, figure.svg())
        except FAULTS as error:
            problems.append(f"{shown_by[0]}: figures: {str(error).splitlines()[0]}")
            complete = False
    if complete:
        stray = {path.name for path in folder.glob("*.svg")} - made
        problems += [f"docs/{name}: nothing makes this figure: remove it" for name in sorted(stray)]
    return problems
