"""README.md and docs/ hold what the registry makes, all of it and nothing else; commands that they show exist."""

import re
import shlex

import pytest
from harness import cli
from harness.core import paths
from harness.core.errors import UserError
from harness.report import docs
from harness.report.blocks import examples
from harness.report.figures.picture import Picture

# In one worker, as `docs` reads the traces of all models once in a process, which takes seconds.
READ_TRACES = {"README.md", *(f"docs/{name}.md" for name in ("backends", "compare", "models", "tolerances"))}
RUN_ALONE = {"docs/apply.md", "docs/submit.md"}  # show what a process of its own prints: ten seconds each
IN_ONE_WORKER = pytest.mark.xdist_group("traces of all models")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[IN_ONE_WORKER] * (page in READ_TRACES) + [pytest.mark.slow] * (page in RUN_ALONE))
        for page in docs.all_pages()
    ],
)
def test_page_is_up_to_date(page):
    """A reader sees the figures that were recorded last, and what a shown command prints now."""
    assert docs.update([page], True, cli.main) == []


def test_every_block_and_figure_belongs_to_a_page():
    pages = docs.all_pages()
    assert {page for page, _ in docs.BLOCKS} | {page for shown_by, _ in docs.FIGURES for page in shown_by} <= set(pages)
    shown = {
        file for page in pages for file in re.findall(r"\((?:docs/)?([\w-]+\.svg)\)", (paths.ROOT / page).read_text())
    }
    assert shown == {path.name for path in paths.DOCS.glob("*.svg")}


# A registry and pages of our own


@pytest.fixture
def root(tmp_path):
    (tmp_path / "docs").mkdir()
    return tmp_path


def page(root, name, text):
    file = root / "docs" / f"{name}.md"
    file.write_text(text)
    return file


def update(root, blocks=None, check=False, figures=(), pages=None):
    (root / "README.md").touch()
    return docs.update(pages or docs.all_pages(root), check, cli.main, root, blocks or {}, figures)


def broken():
    raise UserError("record.json: broken\nsecond line")


def test_a_block_is_replaced_and_the_rest_is_left(root):
    file = page(root, "a", "x\n<!-- generated: t -->\nold\n<!-- end of t -->\ny\n")
    blocks = {("docs/a.md", "t"): lambda: "| new |"}
    assert update(root, blocks, check=True) == ["docs/a.md: block 't' is out of date: run `moebench docs a`"]
    assert "old" in file.read_text()
    assert update(root, blocks) == [] == update(root, blocks, check=True)
    assert file.read_text() == "x\n<!-- generated: t -->\n\n| new |\n\n<!-- end of t -->\ny\n"


def test_one_bad_page_does_not_stop_the_others(root):
    page(root, "a", "<!-- generated: t -->\n<!-- end of t -->\n")
    good = page(root, "b", "<!-- generated: u -->\n<!-- end of u -->\n<!-- generated: v -->\n<!-- end of v -->\n")
    blocks = {("docs/a.md", "t"): broken, ("docs/b.md", "u"): lambda: "good", ("docs/b.md", "v"): broken}
    assert update(root, blocks) == [
        "docs/a.md: block 't': record.json: broken",
        "docs/b.md: block 'v': record.json: broken",
    ]
    assert "good" in good.read_text()


@pytest.mark.parametrize(
    "text, fault",
    [
        ("nothing", "the marker <!-- generated: t --> is missing"),
        (
            "<!-- generated: t -->\n<!-- end of t -->\n<!-- generated: z -->\n<!-- end of z -->",
            "block 'z' is not registered",
        ),
        ("<!-- generated: t -->", "line 1: <!-- generated: t --> has no counterpart"),
        ("a\n<!-- end of t -->", "line 2: <!-- end of t --> has no counterpart"),
        (
            "<!-- generated: t -->\n<!-- output of: true -->\n<!-- end of output -->",
            "line 1: <!-- generated: t --> has no counterpart",
        ),
        ("<!-- output of: a\nb -->\n", "line 1: <!-- output of: a\nb --> has no counterpart"),
        (
            "<!-- generated: t -->\n<!-- end of t -->\n```\n$ ls -l\nfile\n```",
            "`ls -l` shows output, but is no example: put it into <!-- output of: COMMAND -->",
        ),
    ],
)
def test_a_fault_of_the_markers_is_named(root, text, fault):
    page(root, "a", text)
    assert update(root, {("docs/a.md", "t"): lambda: ""}) == [f"docs/a.md: {fault}"]


def test_figures_are_drawn_checked_and_none_is_left_over(root, monkeypatch):
    monkeypatch.setattr(Picture, "svg", lambda self: f"<svg>{self.made_from}</svg>")
    page(root, "a", "")
    (root / "docs" / "old.svg").touch()
    family = (("docs/a.md",), lambda: [Picture("new.svg", broken, ())])
    stray = "docs/old.svg: nothing makes this figure: remove it"
    stale = "docs/new.svg: the figure is out of date: run `moebench docs a`"
    assert update(root, check=True, figures=[family]) == [stale, stray]
    assert update(root, figures=[family]) == [stray]
    assert update(root, check=True, figures=[family], pages=["docs/a.md"]) == []
    assert update(root, figures=[(("docs/a.md",), broken)]) == ["docs/a.md: figures: record.json: broken"]


def test_the_command_takes_names_of_pages(capsys):
    assert cli.main(["docs", "--check", "glossary.md", "triton_fused_v2"]) == 0  # pages that no trace changes
    assert cli.main(["docs", "nothing"]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("unknown page 'nothing'; there are: README, add_a_solution, apply, ")
        and said.count("mxfp8") == 1
    )
    assert docs.chosen_pages([]) == docs.all_pages()
    assert docs.chosen_pages(["mxfp8"]) == ["docs/history/mxfp8.md", "docs/mxfp8.md"]


# Examples


def test_an_example_is_run_and_shown():
    with examples.working_folder():
        assert examples.block("echo one > file\ncat file; echo two", cli.main) == (
            "```\n$ echo one > file\n$ cat file; echo two\none\ntwo\n```"
        )
        ours = examples.block("moebench compare --help | head -n 1", cli.main)
        assert ours.startswith("```\n$ moebench compare --help | head -n 1\nusage: moebench compare [-h]")
        # `yes` is ended by SIGPIPE every time, other commands before `head` now and then
        assert examples.output_of("yes | head -n 2", cli.main) == "y\ny\n"
        assert "TINY=1" not in examples.output_of("TINY=1 moebench docs --help; echo $?", cli.main)
        assert examples.output_of("moebench docs nothing; echo $?", cli.main) == "2\n"
    assert not (paths.ROOT / "file").exists()


@pytest.mark.parametrize(
    "command, fault",
    [("echo no >&2; exit 3", "exit status 3: no"), ("moebench docs nothing", "exit status 2: unknown page 'nothing'")],
)
def test_an_example_that_fails_is_named(root, command, fault):
    page(root, "a", f"<!-- output of: {command} -->\n<!-- end of output -->\n")
    (line,) = update(root)
    assert line.startswith(f"docs/a.md: example `{command}`: `{command}` ended with {fault}")


# Commands in the text


def test_every_make_target_that_is_shown_exists():
    targets = set(re.findall(r"^([a-z0-9-]+):", (paths.ROOT / "Makefile").read_text(), re.M))
    for name in docs.all_pages():
        shown = re.findall(r"(?:`|^(?:\$ )?)make ([a-z][a-z0-9-]*)", (paths.ROOT / name).read_text(), re.M)
        assert set(shown) <= targets, name


def shown_commands():
    """(page, command line) of every `moebench ...` in a code block or between backquotes, without its pipe."""
    for name in docs.all_pages():
        text = (paths.ROOT / name).read_text().replace("\\\n", " ")
        for found in re.finditer(r"(?:`|^(?:\$ )?|[A-Z_]+=\S+ )(moebench (?:<\w+>|(?! 2>)[^`\n|;&<>])*)", text, re.M):
            line = found[1].partition("  #")[0].strip()
            yield pytest.param(name, line, id=f"{name}: {line}")


@pytest.mark.parametrize("name, line", list(shown_commands()))
def test_a_shown_command_parses(name, line):
    """A reader would meet: a command or option that has been renamed. Arguments may be left out, as in prose."""
    words = shlex.split(line)[1:]
    try:
        cli.parser_for(words[0]).parse_args(words)
    except UserError as error:
        assert "the following arguments are required" in str(error), error
    except SystemExit as error:
        assert error.code == 0


# What a reader meets

PROSE_WORDS = 900  # of one page: more is a diary, and belongs in docs/history/ as a table
DIALECT = re.compile(r"\b(?:by turns|turn about|anew|told of|none of ours|a row a workload|the floor)\b")
DESIGN_PAGES = [name for name in docs.all_pages() if not name.startswith("docs/history/")]
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.M)


def prose_lines(page):
    """Lines that somebody wrote: no generated block, code, table or link target."""
    text = docs.FENCE.sub("", docs.PIECE.sub("", (paths.ROOT / page).read_text()))
    return [line for line in text.splitlines() if not re.match(r" *\||\[[^\]]+\]: ", line)]


@pytest.mark.parametrize("page", DESIGN_PAGES)
def test_a_page_is_short_and_wrapped(page):
    lines = prose_lines(page)
    assert len(" ".join(lines).split()) <= PROSE_WORDS
    assert [line for line in lines if len(line) > 200] == []


def test_the_readme_is_short():
    assert len((paths.ROOT / "README.md").read_text().splitlines()) < 130


@pytest.mark.parametrize("page", DESIGN_PAGES)
def test_a_page_is_in_the_fields_words(page):
    """docs/glossary.md has the words, and lists older ones beside them."""
    assert [line for line in prose_lines(page) if DIALECT.search(line)] == []


def anchors(page):
    """GitHub's names of a page's headings."""
    text = docs.FENCE.sub("", page.read_text())
    names = [
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ +(.+)$", text, re.M)
    ]
    return {*names, *(f"{name}-{names[:at].count(name)}" for at, name in enumerate(names) if name in names[:at])}


@pytest.mark.parametrize("page", docs.all_pages())
def test_every_link_of_a_page_leads_somewhere(page):
    here, broken = paths.ROOT / page, []
    for link in map("".join, LINK.findall(docs.FENCE.sub("", here.read_text()))):
        file, _, anchor = link.partition("#")
        target = (here.parent / file).resolve() if file else here
        if "://" not in link and (not target.exists() or anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("folder", ["docs", "docs/history"])
def test_the_index_names_every_page(folder):
    index = (paths.ROOT / folder / "README.md").read_text()
    pages = [path.name for path in (paths.ROOT / folder).glob("*.md") if path.name != "README.md"]
    assert [name for name in pages if f"]({name})" not in index] == []
