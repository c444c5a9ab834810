"""The wheel's data: what the command reads in a clone travels in moebench/data/.

All else about the package is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("definitions", "workloads", "solutions", "integrations")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "packed")


class BuildWithData(build_py):
    """Copies the shipped folders into the wheel; an editable install reads them where they lie."""

    def run(self):
        super().run()
        if self.editable_mode:
            return

        data = Path(self.build_lib, "moebench", "data")
        shutil.rmtree(data, ignore_errors=True)  # of an earlier build
        for folder in SHIPPED:
            shutil.copytree(folder, data / folder, ignore=LEFT_OUT)


setup(cmdclass={"build_py": BuildWithData})
