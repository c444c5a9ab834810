"""What docs/compare.md shows of a command is what the command prints."""

import pytest
from harness.core import paths
from harness.report import doc_examples


def test_examples_are_up_to_date():
    """A reader who types a shown command must get what is shown."""
    text = (paths.DOCS / "compare.md").read_text()
    assert doc_examples.renewed(text) == text, "run `make examples`"


def test_an_output_is_replaced_and_the_rest_is_left(tmp_path):
    text = "a\n<!-- output of: echo one; echo two -->\nold\n<!-- end of output -->\nb\n"
    new = doc_examples.renewed(text)
    assert new.startswith("a\n<!-- output of: echo one; echo two -->\n\n```\n$ echo one; echo two\none\ntwo\n```\n")
    assert "old" not in new and new.endswith("<!-- end of output -->\nb\n")
    assert doc_examples.renewed(new) == new


def test_an_example_that_fails_is_named():
    text = "<!-- output of: echo no >&2; exit 3 -->\n<!-- end of output -->\n"
    with pytest.raises(ValueError, match="ended with 3: no"):
        doc_examples.renewed(text)
    with pytest.raises(ValueError, match="no example"):
        doc_examples.renewed("plain text")
