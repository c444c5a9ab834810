"""tiles: SGLang's configuration of its kernel for this layer on an H200, by rows per expert and K.

Its own tables hold layers cut by columns, not by experts, and not these sizes. Tiles follow its
H200 tables where an expert gets as many rows: their rows per expert, not their token counts, are
what carries over. Widths are multiples of 128, so BLOCK_SIZE_N divides every N. K of the second
GEMM is the intermediate size: its pipeline is as deep as those of the tables up to 2048 wants, and
shallower where a tile has few steps.
"""

# Tiles without rows that are too many: 8192 programs of gemm1 and 14336 of gemm2, of DeepSeek-V3's
# layer.
MANY_TILES = 256


def choose_configs(rows_per_expert, intermediate_size):
    """Return keywords of SGLang's kernel for each GEMM, and whether the first uses TMA for weights.

    The GEMMs share BLOCK_SIZE_M, since they share the order of rows.

    rows_per_expert: T * top_k / num_experts, the mean over all experts.
    """
    most_stages = max(2, intermediate_size // 256)  # half of the steps of the second GEMM
    if rows_per_expert <= 4:
        first = _config(16, 64, 1, 5)
        second = _config(16, 128, 1, min(4, most_stages))
    elif rows_per_expert <= 12:
        first = _config(16, 128, 32, 4)
        second = _config(16, 128, 64, min(4, most_stages))
    elif rows_per_expert <= 24:
        first = _config(32, 128, 1, 5)
        second = _config(32, 128, 16, min(4, most_stages))
    else:
        first = _config(64, 128, 16, 3)
        second = _config(64, 128, 16, min(3, most_stages))

    # By pointer, 64 x 128 takes 204 registers a thread, and a multiprocessor holds two programs; by
    # TMA 168, and three.
    first_by_tma = rows_per_expert > 24
    return first, second, first_by_tma


def usual_tiles(pairs, share, num_local_experts, block_m, most):
    """Return the tiles of twice the rows that this rank would get if routing were even.

    Where `most` is not far beyond that, it is returned.

    share: of all experts, those that are local; most: upper bound on the tiles of any routing.
    """
    rows = int(2 * share * pairs)
    usual = rows // block_m + num_local_experts
    return usual if most - usual >= MANY_TILES else most


def _config(block_m, block_n, group, num_stages):
    """Return keywords of SGLang's kernel."""
    return {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": block_n,
        "BLOCK_SIZE_K": 128,  # one scale of 128 columns a step
        "GROUP_SIZE_M": group,
        "num_warps": 4,
        "num_stages": num_stages,
    }
