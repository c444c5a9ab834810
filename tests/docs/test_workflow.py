"""The GitHub Actions workflow, checked without GitHub: a mistake in it shows only after a push
otherwise.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from moebench import cli
from moebench.core import paths

FILE = paths.ROOT / ".github" / "workflows" / "ci.yml"
WORKFLOW = pytest.importorskip("ruamel.yaml").YAML(typ="safe").load(FILE)
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
COMMANDS = [(name, shlex.split(step["run"])) for name, step in STEPS if "run" in step]
AUDITS = {
    "check-jsonschema": ["--builtin-schema", "vendor.github-workflows"],
    # untrusted text in a shell, wide permissions, unpinned actions, credentials left behind
    "zizmor": [
        "--offline",
        "--no-progress",
        "--no-config",
        "--persona",
        "pedantic",
    ],
}


@pytest.mark.parametrize("tool", AUDITS)
def test_an_audit_finds_nothing(tool):
    found = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run([found, *AUDITS[tool], FILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_command_exists_with_its_options():
    """A user would miss: a renamed command or option that breaks the workflow and no test."""
    ours = [
        words[: words.index(">")] if ">" in words else words
        for name, words in COMMANDS
        if name != "comment"
    ]
    assert [".ci/run"] in ours and len(ours) == len(COMMANDS) - 1
    for words in ours:
        if words[0] == ".venv/bin/moebench":  # made by `make setup`
            cli.parser_for(words[1]).parse_args(words[1:])
        elif words[0] == "make":
            assert re.search(
                rf"^{words[1]}:",
                (paths.ROOT / "Makefile").read_text(encoding="utf-8"),
                re.M,
            )
        else:
            assert os.access(paths.ROOT / words[0], os.X_OK), words[0]


PYTHON = (
    '#!/usr/bin/env bash\necho "$(basename "$PWD") $*" >> {log}\n[ "$2" = pip ] || exit {status}\n'
)


@pytest.fixture
def bench(tmp_path):
    """.ci/bench in a checkout whose environment only notes what it is asked, and exits as told when
    it measures.
    """
    root, log = tmp_path / "root", tmp_path / "log"
    python = root / ".venv" / "bin" / "python"
    for folder in (root / ".ci", python.parent, root / "before"):
        folder.mkdir(parents=True)
    shutil.copy(paths.ROOT / ".ci" / "bench", root / ".ci" / "bench")
    (root / "Makefile").write_text("setup:\n\t@true\n")

    def run(status, *args):
        log.write_text("")
        python.write_text(PYTHON.format(log=log, status=status))
        python.chmod(0o755)
        done = subprocess.run(
            [root / ".ci" / "bench", *args],
            capture_output=True,
            text=True,
        )
        return done.returncode, log.read_text().splitlines()

    return run


def test_the_benchmark_takes_turns(bench):
    """A machine that slows down over time must not look like a slower change."""
    status, log = bench(0, "bench", "before")
    measured = [line.split() for line in log if " -m moebench " in line]
    assert status == 0 and len(log) == 2 * len(measured)
    turns = [
        (
            f"before ../bench/before-{n}.jsonl",
            f"root bench/after-{n}.jsonl",
        )
        for n in (1, 2, 3)
    ]
    assert [f"{words[0]} {words[-1]}" for words in measured] == [
        line for turn in turns for line in turn
    ]
    cli.parser_for("run").parse_args(measured[0][3:])


def test_a_failing_solution_is_left_to_the_comparison_but_a_failing_run_is_not(
    bench,
):
    assert bench(1, "bench")[0] == 0
    status, log = bench(2, "bench")
    assert status != 0 and len(log) == 2  # installed, then run
