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
AUDITS = {
    "check-jsonschema": ["--builtin-schema", "vendor.github-workflows"],
    # untrusted text in a shell, wide permissions, unpinned actions, credentials left behind
    "zizmor": ["--offline", "--no-progress", "--no-config", "--persona", "pedantic"],
}


@pytest.mark.parametrize("tool", AUDITS)
def test_an_audit_finds_nothing(tool):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = shutil.which(tool, path=path)
    done = subprocess.run(
        [program, *AUDITS[tool], FILE], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def commands_of(job):
    """Return the words of each command of a job, before a redirection."""
    commands = []
    for step in JOBS[job]["steps"]:
        if "run" in step:
            before, *_ = step["run"].split(">")
            commands.append(shlex.split(before))
    return commands


def test_every_command_exists_with_its_options():
    """A renamed command or option would break the workflow and no other test."""
    commands = []
    for job in JOBS.keys() - {"comment"}:  # which runs GitHub's own
        commands += commands_of(job)
    assert [".ci/run"] in commands

    makefile = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    for program, *words in commands:
        if program == ".venv/bin/moebench":  # made by `make setup`
            cli.parser_for(words[0]).parse_args(words)
        elif program == "make":
            assert re.search(rf"^{words[0]}:", makefile, re.M)
        else:
            assert os.access(paths.ROOT / program, os.X_OK), program


# Notes its folder and arguments; with anything but pip it ends with a status.
PYTHON = """#!/usr/bin/env bash
echo "$(basename "$PWD") $*" >> {log}
[ "$2" = pip ] || exit {status}
"""


@pytest.fixture
def bench(tmp_path):
    """Runs .ci/bench in a checkout whose Python only notes what it is asked.

    It ends with the status that it is given when it measures.
    """
    root = tmp_path / "root"
    log = tmp_path / "log"
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
            [root / ".ci" / "bench", *args], capture_output=True, text=True
        )
        return done.returncode, log.read_text().splitlines()

    return run


def test_the_benchmark_takes_turns(bench):
    """A machine that slows down over time must not look like a slower change."""
    status, log = bench(0, "bench", "before")
    measured = [line.split() for line in log if " -m moebench " in line]
    assert status == 0
    assert len(log) == 2 * len(measured)

    turns = []
    for number in (1, 2, 3):
        turns.append(f"before ../bench/before-{number}.jsonl")
        turns.append(f"root bench/after-{number}.jsonl")
    assert [f"{words[0]} {words[-1]}" for words in measured] == turns
    cli.parser_for("run").parse_args(measured[0][3:])


def test_a_failing_solution_is_left_to_the_comparison(bench):
    status, _ = bench(1, "bench")
    assert status == 0


def test_a_failing_run_ends_the_script(bench):
    status, log = bench(2, "bench")
    assert status != 0
    assert len(log) == 2  # installed, then run
