"""Random numbers for the tensors of workloads, the same to the last bit on every machine.

They are made of the bits of numpy's Philox generator by integer sums and exactly rounded operations
alone: functions of a maths library, as exp, differ from machine to machine.
"""

import hashlib
import math

import numpy as np

# A number that is close to normal is a sum of 8 uniform 16-bit integers, whose mean and standard
# deviation are these.
HALF_WORDS = 8
MEAN = HALF_WORDS * 65535 / 2
PER_STD = 1 / 53509.9


def bits(seed: str, count: int) -> np.ndarray:
    """Return the first `count` uint64 words of the Philox stream of a seed, any text."""
    digest = hashlib.sha256(seed.encode()).digest()
    key = int.from_bytes(digest[:16], "little")
    return np.random.Philox(key=key).random_raw(count)


def integers(seed: str, count: int, bound: int) -> np.ndarray:
    """Return `count` int64 in [0, bound), for a bound far below 2**32."""
    return (bits(seed, count) % np.uint64(bound)).astype(np.int64)


def normal(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float64 numbers that are close to normal, with mean 0 and deviation 1,
    within +-4.9.
    """
    count = math.prod(shape)
    words = bits(seed, count * HALF_WORDS // 4).astype("<u8")
    halves = words.view("<u2").reshape(count, HALF_WORDS)
    sums = halves.sum(axis=1, dtype=np.int64)
    numbers = (sums - MEAN) * PER_STD
    return numbers.reshape(shape)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the float64 sigmoid for |x| <= 16, with a relative error below 1e-12.

    e^-x is (e^(-x/64))^64, and that a polynomial of degree 12.
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
    total = sum(weights.T)
    return weights / total[:, None]
