"""The GitHub Actions workflow, checked without GitHub: a mistake in it shows only after a push otherwise."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import cli
from harness.core import paths

FILE = paths.ROOT / ".github" / "workflows" / "ci.yml"
WORKFLOW = pytest.importorskip("ruamel.yaml").YAML(typ="safe").load(FILE)
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
COMMANDS = [(name, shlex.split(step["run"])) for name, step in STEPS if "run" in step]


def tool(name):
    """A command of the environment that runs the tests."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_it_follows_githubs_schema():
    command = [tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", FILE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_security_audit_finds_nothing():
    """Untrusted text in a shell, wide permissions, unpinned actions, credentials left behind: zizmor knows them all."""
    command = [tool("zizmor"), "--offline", "--no-progress", "--no-config", "--persona", "pedantic", FILE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_expression_reaches_a_shell():
    assert COMMANDS and not any("${{" in word for _, words in COMMANDS for word in words)


def test_permissions_are_the_least_that_each_job_needs():
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == {
        "cpu": {"contents": "read"},
        "pages": {"pages": "write", "id-token": "write"},
        "gpu": {"contents": "read"},
        "comment": {"pull-requests": "write"},
    }
    for writer in ("pages", "comment"):
        uses = [step.get("uses", "") for name, step in STEPS if name == writer]
        assert uses and not any("checkout" in use for use in uses), "a job that may write runs nothing of the change"


def test_actions_are_pinned_and_say_their_version():
    used = re.findall(r"uses: (.*)", FILE.read_text())
    assert len(used) == sum("uses" in step for _, step in STEPS)
    for line in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_every_command_exists_with_its_options():
    """A user would miss: a renamed script or option that breaks the workflow and no test."""
    ours = 0
    for _, words in COMMANDS:
        if words[0] == "gh":
            continue
        ours += 1
        if words[0] == ".venv/bin/moebench":  # made by `make setup`
            cli.parser_for(words[1]).parse_args(words[1:])
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (paths.ROOT / "Makefile").read_text(), re.M)
        else:
            assert os.access(paths.ROOT / words[0], os.X_OK), f"{words[0]} cannot be run"
    assert ours == len(COMMANDS) - 1


def test_the_cpu_suite_runs_on_every_push_and_pull_request():
    assert set(WORKFLOW["on"]) == {"push", "pull_request"}
    assert all(not filters for filters in WORKFLOW["on"].values())
    assert "if" not in JOBS["cpu"] and ("cpu", [".ci/run"]) in COMMANDS


def test_a_gpu_is_asked_for_only_where_there_is_one_and_never_by_a_fork():
    condition = " ".join(JOBS["gpu"]["if"].split())
    assert condition.startswith("vars.GPU_RUNNER != '' && (") and "self-hosted" in JOBS["gpu"]["runs-on"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in condition


def test_the_traces_are_kept_even_when_the_comparison_fails():
    names = [step.get("name") for name, step in STEPS if name == "gpu"]
    keep = next(step for _, step in STEPS if step.get("name") == "Keep the traces")
    assert names.index("Compare") < names.index("Keep the traces") and keep["if"] == "${{ !cancelled() }}"
    assert JOBS["comment"]["if"].startswith("${{ !cancelled()")


def test_gpu_tests_run_before_the_benchmark():
    commands = [words for name, words in COMMANDS if name == "gpu"]
    assert commands[0] == ["make", "test-gpu"] and commands[1][0] == ".ci/bench"


def test_the_comment_needs_no_comparison():
    """The GPU job may end before anything was measured; its own failure is what a reader should see."""
    download, comment = JOBS["comment"]["steps"]
    assert download["continue-on-error"] is True
    assert comment["if"] == "${{ hashFiles('comparison.md') != '' }}" and "--body-file comparison.md" in comment["run"]
    keep = next(step for _, step in STEPS if step.get("name") == "Keep the traces")
    assert keep["with"]["if-no-files-found"] == "warn"


def test_the_results_page_is_built_kept_and_published_only_where_pages_is_on():
    build, keep = JOBS["cpu"]["steps"][-2:]
    assert build["run"].endswith("moebench page --output site/index.html") and keep["with"]["path"] == "site"
    condition = " ".join(JOBS["pages"]["if"].split())
    assert condition.startswith("vars.PUBLISH_PAGES != '' && github.event_name == 'push' && github.ref_name == ")
    download, upload, deploy = JOBS["pages"]["steps"]
    assert download["with"]["name"] == keep["with"]["name"] and download["with"]["path"] == upload["with"]["path"]
    assert "actions/deploy-pages@" in deploy["uses"] and JOBS["pages"]["environment"]["name"] == "github-pages"


PYTHON = """#!/usr/bin/env bash
echo "$(basename "$PWD") $*" >> {log}
[ "$1" = -m ] || exit {status}
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with .ci/bench whose environment only notes what it is asked; returns (folder, status setter)."""
    root = tmp_path / "root"
    (root / ".ci").mkdir(parents=True)
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / "before").mkdir()
    shutil.copy(paths.ROOT / ".ci" / "bench", root / ".ci" / "bench")
    (root / "Makefile").write_text("setup:\n\t@true\n")

    def run(status, *args):
        log = tmp_path / "log"
        log.write_text("")
        python = root / ".venv" / "bin" / "python"
        python.write_text(PYTHON.format(log=log, status=status))
        python.chmod(0o755)
        done = subprocess.run([root / ".ci" / "bench", *args], capture_output=True, text=True)
        return done.returncode, log.read_text().splitlines()

    return run


def test_the_benchmark_takes_turns(checkout):
    """A machine that slows down over time must not look like a slower change."""
    asked = "scripts/run_local.py --tolerance contest --save --output"
    install = "root -m pip install --quiet --no-deps --editable"
    status, log = checkout(0, "bench", "before")
    assert status == 0 and log == [
        line
        for n in (1, 2, 3)
        for line in (
            f"{install} before",
            f"before {asked} ../bench/before-{n}.jsonl",
            f"{install} .",
            f"root {asked} bench/after-{n}.jsonl",
        )
    ]
    assert len(checkout(0, "bench")[1]) == 6
    command = [sys.executable, paths.ROOT / "scripts" / "run_local.py", "--help"]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    assert all(word in said for word in asked.split()[1:] if word.startswith("--"))


def test_a_failing_solution_is_left_to_the_comparison_but_a_failing_run_is_not(checkout):
    assert checkout(1, "bench")[0] == 0
    status, log = checkout(2, "bench")
    assert status != 0 and len(log) == 2  # installed, then run
