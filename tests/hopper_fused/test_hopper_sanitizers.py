"""compute-sanitizer's tools on a small layer through hopper_fused's many-token kernels."""

import hopper_small_layer as small_layer
import hopper_stages as stages
import pytest
import sanitizer

RACECHECK = (*sanitizer.TOOLS["racecheck"], "--kernel-name", "kernel_substring=grouped_gemm")


def errors(variant, options):
    library = stages.build(small_layer.sources(variant), ("-lineinfo",))
    return sanitizer.errors(options, small_layer.__file__, library, len(small_layer.COUNTS))


@pytest.mark.parametrize("variant", small_layer.VARIANTS)
def test_variants_change_what_they_name(variant):
    """A user would miss: a check of kernels without the change that the tool needs, as their source has changed."""
    before, after = small_layer.sources("one lane releases"), small_layer.sources(variant)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {path for path, _, _ in small_layer.VARIANTS[variant]}


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "initcheck"])
def test_clean(tool):
    """A user would miss: bytes outside a tensor, a barrier used against its rules, scratch that is read unwritten."""
    found, said = errors("one lane releases", sanitizer.TOOLS[tool])
    assert found == 0, said


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("variant", "clean"), [("every lane releases", True), ("one lane releases", False)])
def test_racecheck(variant, clean):
    """A user would miss: shared memory that is read before it is written, or after; a wrong row now and then.

    With one lane's release the tool reports reads that are ordered, which shows that it sees unordered ones.
    """
    found, said = errors(variant, RACECHECK)
    assert (found == 0) == clean, said
