"""terms: how many FP8 terms h has above 1024 tokens; below, two cost nothing and are always used."""

TERMS = 1
