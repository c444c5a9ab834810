"""Rows of a permutation, as permute.py of the Triton stages returns it."""


def rows_of_tokens(permutation):
    """Return the numbers of the rows that hold a token; others are padding or undefined."""
    rows = permutation.row_of_pair.flatten()
    return rows[rows >= 0].long()
