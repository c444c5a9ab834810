"""terms: how many FP8 terms h has above 1024 tokens. Below it always has two, as the second one costs nothing there."""

TERMS = 1
