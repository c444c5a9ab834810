"""The random numbers that workloads are drawn from, the same to the last bit everywhere.

Philox bits, integer sums, exactly rounded operations, no maths library.
"""

import hashlib
import math

import numpy as np

HALF_WORDS = 8
# A sum of 8 uniform 16-bit integers has this mean, and a standard deviation of 53509.9.
MEAN = HALF_WORDS * 65535 / 2
PER_STD = 1 / 53509.9


def bits(seed: str, count: int) -> np.ndarray:
    """Return `count` uint64 words of the Philox stream that belongs to `seed`."""
    digest = hashlib.sha256(seed.encode()).digest()
    key = int.from_bytes(digest[:16], "little")
    return np.random.Philox(key=key).random_raw(count)


def integers(seed: str, count: int, bound: int) -> np.ndarray:
    """Return `count` int64 in [0, bound), for a bound far below 2**32."""
    return (bits(seed, count) % np.uint64(bound)).astype(np.int64)


def normal(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers close to normal, mean 0 and deviation 1, float64; sums of integers, so within
    +-4.9.
    """
    count = math.prod(shape)
    words = bits(seed, count * HALF_WORDS // 4).astype("<u8")
    halves = words.view("<u2").reshape(count, HALF_WORDS)
    sums = halves.sum(axis=1, dtype=np.int64)
    numbers = (sums - MEAN) * PER_STD
    return numbers.reshape(shape)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the float64 sigmoid for |x| <= 16, from products and sums alone; relative error below
    1e-12.
    """
    step = x * (-1 / 64)
    power = np.ones_like(step)
    # In place: these arrays are large, and new ones take four times as long.
    for n in range(12, 0, -1):
        power *= step
        power /= n
        power += 1
    for _ in range(6):
        power *= power
    power += 1
    return np.divide(1, power, out=power)


def exponential(x: np.ndarray) -> np.ndarray:
    """Return e^x for -16 <= x <= 0, float64."""
    half = sigmoid(x)
    return half / (1 - half)


def normalised(weights: np.ndarray) -> np.ndarray:
    """Return weights [T, n] that add up to one in each row."""
    # numpy's own sum may add in another order elsewhere
    total = sum(weights[:, slot] for slot in range(weights.shape[1]))
    return weights / total[:, None]
