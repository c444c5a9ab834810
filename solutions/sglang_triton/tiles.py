"""tiles: SGLang's configuration of its kernel for this layer on an H200, by rows per expert and K.

Its own tables hold layers cut by columns, not by experts, and not these sizes. Tiles follow its H200 tables where an
expert gets as many rows: their rows per expert, not their token counts, are what carries over. Widths are multiples of
128, so BLOCK_SIZE_N divides every N. K of the second product is the intermediate size: its pipeline is as deep as
those of the tables up to 2048 wants, and shallower where a tile has few steps.
"""


def choose_configs(rows_per_expert, intermediate_size):
    """Keywords of SGLang's kernel for the two products; they share BLOCK_SIZE_M, since they share the order of rows.

    rows_per_expert: T * top_k / num_experts, the mean over all experts.
    """
    most_stages = max(2, intermediate_size // 256)  # half of the steps of the second product
    if rows_per_expert <= 4:
        return _config(16, 64, 1, 5), _config(16, 128, 1, min(4, most_stages))
    if rows_per_expert <= 12:
        return _config(16, 128, 32, 4), _config(16, 128, 64, min(4, most_stages))
    if rows_per_expert <= 24:
        return _config(32, 128, 1, 5), _config(32, 128, 16, min(4, most_stages))
    return _config(64, 128, 1, 4), _config(64, 128, 16, min(3, most_stages))


def _config(block_m, block_n, group, num_stages):
    return {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": block_n,
        "BLOCK_SIZE_K": 128,  # one scale of 128 columns a step
        "GROUP_SIZE_M": group,
        "num_warps": 4,
        "num_stages": num_stages,
    }
