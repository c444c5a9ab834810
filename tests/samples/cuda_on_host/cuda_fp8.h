// The FP8 types are not needed to divide work.
