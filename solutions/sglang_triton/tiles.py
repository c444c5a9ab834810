"""tiles: SGLang's configuration of its kernel for this layer on an H200.

Its own tables hold no 32 experts of 2048 columns. Tiles follow its H200 table for DeepSeek-V3 cut eight ways by
columns, where an expert gets as many rows at the same token count; there K of the second product is an eighth, so
its pipeline is made deeper here.
"""


def choose_configs(num_tokens):
    """Keywords of SGLang's kernel for the two products; they share BLOCK_SIZE_M, since they share the order of rows."""
    if num_tokens <= 128:
        return _config(16, 64, 1, 5), _config(16, 128, 1, 4)
    if num_tokens <= 384:
        return _config(16, 128, 32, 4), _config(16, 128, 64, 4)
    if num_tokens <= 768:
        return _config(32, 128, 1, 5), _config(32, 128, 16, 4)
    return _config(64, 128, 1, 4), _config(64, 128, 16, 3)


def _config(block_m, block_n, group, num_stages):
    return {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": block_n,
        "BLOCK_SIZE_K": 128,  # one scale of 128 columns a step
        "GROUP_SIZE_M": group,
        "num_warps": 4,
        "num_stages": num_stages,
    }
