"""terms: FP8 terms of h above 32 rows per expert; two, q(h) and q(h - q(h)), meet FIB's default tolerance."""

TERMS = 2
