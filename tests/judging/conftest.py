import pytest
from moebench.core import paths


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which a command finds solutions."""
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    return tmp_path
