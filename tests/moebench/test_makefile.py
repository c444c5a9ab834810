"""`make setup`: what it installs and when it does so again; a stand-in for Python installs
nothing.
"""

import os
import shutil
import subprocess

import pytest
from moebench.core import paths

# `-m venv FOLDER` makes a virtual environment of programs that do nothing; its python's status is
# $NO_CUDA.
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p $3/bin
echo '#!/bin/sh' | tee $3/bin/pip > $3/bin/python
echo 'exit ${NO_CUDA:-0}' >> $3/bin/python
chmod +x $3/bin/*
"""


@pytest.fixture
def setup(tmp_path):
    """`make setup` with arguments, in an empty folder: what it prints."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("python3", PYTHON), ("nvidia-smi", '#!/bin/sh\nexit "${NO_GPU:-0}"\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def run(*arguments, **variables):
        env = {
            key: value
            for key, value in os.environ.items()
            if key not in ("TORCH", "PYTHON", "MAKEFLAGS")
        }
        command = ["make", "setup", *arguments]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=env | {"PATH": path} | variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_another_torch_is_installed_and_kept(setup, tmp_path):
    """A user would miss: `make setup TORCH=...` that has nothing to do; or a torch that is set back
    later.
    """
    install = 'pip install --quiet "torch=={}"'.format
    assert install("2.13.0") in setup() and install("2.13.0") not in setup()
    assert install("2.11.0") in setup("TORCH=torch==2.11.0")
    assert "pip install" not in setup() + setup("TORCH=torch==2.11.0")
    os.utime(tmp_path / "pyproject.toml", (2**32, 2**32))
    assert install("2.11.0") in setup()


def test_a_gpu_that_torch_cannot_use_is_named(setup):
    """A user would miss: why everything runs on the CPU."""
    advice = "make setup TORCH="
    assert advice in setup(NO_CUDA="1")
    assert advice not in setup("TORCH=torch==2.11.0")
