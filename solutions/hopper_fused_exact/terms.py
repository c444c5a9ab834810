"""terms: how many FP8 terms h has above 1024 tokens; two, q(h) and q(h - q(h)), meet FIB's default tolerance."""

TERMS = 2
