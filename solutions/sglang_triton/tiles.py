"""tiles: the configuration of SGLang's kernel for this layer on an H200, by rows per expert and K.

SGLang's tables are for layers split by columns, not by experts, and do not have these sizes. The
tiles here are those that SGLang's H200 tables have for the same number of rows per expert, not for
the same number of tokens.

All N are multiples of 128, so BLOCK_SIZE_N divides them. K of the second GEMM is the intermediate
size. Where a tile of it has few steps of K, its pipeline has fewer stages.
"""

# So many launched tiles without rows are worth avoiding. In DeepSeek-V3's layer 256 tiles are 8192
# programs of gemm1 and 14336 of gemm2.
MANY_TILES = 256


def choose_configs(rows_per_expert, intermediate_size):
    """Return keywords of SGLang's kernel for each GEMM, and whether the first uses TMA for weights.

    Both have the same BLOCK_SIZE_M, to which rows are padded once.

    rows_per_expert: T * top_k / num_experts, the mean over all experts.
    """
    # half of the steps of the second GEMM
    most_stages = max(2, intermediate_size // 256)

    # block of rows, of columns, row tiles of a group, pipeline stages
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
    """Return how many tiles SGLang's kernel is launched for; overflow_gemm.py does any others.

    That is enough for twice the rows that this rank would get if routing were even. It is enough
    for any routing where that takes fewer than MANY_TILES tiles more.

    pairs: T * top_k. share: expected rows on this rank for each pair. most: the most tiles that any
    routing can make.
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
