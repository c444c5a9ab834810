"""Which solution to use for each model, as the README and docs/models.md show it."""

from moebench.operators.catalogue import definition_name
from moebench.reports import measured_with, models
from moebench.results import measurements
from recorded import DEFAULT, everywhere, trace, write

LAYER = "DeepSeek-V3 EP8"


def rows_of(tmp_path, traces):
    rows, _ = measurements.load([write(tmp_path / "t.jsonl", traces)])
    return rows


def recommended(rows):
    return models.recommended_table(models.measured_layers(rows))


def texts(table):
    (row,) = table.rows
    return [getattr(entry, "text", entry) for entry in row]


def test_the_fastest_of_the_model_and_how_far_ahead_it_is(tmp_path):
    traces = [*everywhere("fast", 1.0), *everywhere("slow", 2.0)]
    traces += everywhere("slow", 2.0, tolerance=DEFAULT)
    rows = rows_of(tmp_path, traces)

    fast = rows[(rows.solution == "fast") & rows.over_bound.notna()]
    over_bound = fast.over_bound.prod() ** (1 / len(fast))
    expected = [LAYER, "fast", "slow", f"{over_bound:.2f}", "2.00"]
    assert texts(recommended(rows)) == expected


def test_no_solution_that_failed_somewhere_is_recommended(tmp_path):
    rows = rows_of(tmp_path, [trace("fast", 1)])
    assert texts(recommended(rows)) == [LAYER, "none passed", None, None, None]


def test_the_speed_at_a_token_count_that_was_not_run_is_that_of_the_nearest(tmp_path):
    rows = rows_of(tmp_path, everywhere("fast", 1.0))
    over_bound = rows.set_index("tokens").over_bound
    table = models.speeds_table(models.measured_layers(rows))
    assert texts(table) == [
        LAYER,
        f"{over_bound[1]:.2f}, 1 active",
        f"{over_bound[32]:.2f}",
        f"{over_bound[901]:.2f} (901)",
        f"{over_bound[11948]:.2f} (11948)",
    ]


def test_how_close_to_the_bound_the_fastest_is_and_how_far_ahead(tmp_path):
    """At each token count; a variant goes by the name of its base, and is not the next one."""
    layer = {"definition": definition_name("glm-5-ep8")}
    traces = [
        trace("hopper_fused_exact", 1, 0.5, **layer),
        trace("hopper_fused", 1, 0.75, **layer),
        trace("deepgemm", 1, 1.0, **layer),
        trace("hopper_fused", 8, 2.0, **layer),
        trace("deepgemm", 8, 1.0, **layer),
        trace("hopper_fused", 32, 2.0, **layer),
    ]
    rows = rows_of(tmp_path, traces)
    bound = rows.groupby("tokens").bound_ms.first()
    table = models.ahead_table(models.measured_layers(rows, models.is_whole))
    assert texts(table) == [
        "GLM-5 EP8",
        "hopper_fused, deepgemm",
        f"{0.5 / bound[1]:.2f} (2.00)",
        f"{1.0 / bound[8]:.2f} (2.00)",
        *[None] * 4,
    ]


def test_layers_of_whole_experts_are_neither_shards_nor_the_main_definition(tmp_path):
    keys = ["full", "glm-5-ep8", "deepseek-v3-tp8"]
    traces = [trace("fast", 1, 0.5, definition=definition_name(key)) for key in keys]
    rows = rows_of(tmp_path, traces)
    whole = models.measured_layers(rows, models.is_whole)
    shards = models.measured_layers(rows, models.is_shard)
    assert [each.layer.key for each in whole] == ["glm-5-ep8"]
    assert [each.layer.key for each in shards] == ["deepseek-v3-tp8"]


def test_solutions_of_earlier_code_are_named_below_the_table(tmp_path):
    traces = [
        *everywhere("fast", 1.0, earlier_code="before X"),
        *everywhere("slow", 2.0),
    ]
    rows = rows_of(tmp_path, traces)
    assert measured_with.in_full(rows).endswith("; fast: of earlier code: before X")
