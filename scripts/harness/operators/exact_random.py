"""Random numbers that are the same to the last bit on every machine.

Only raw Philox bits, integer sums and exactly rounded IEEE operations are used: no call into a
maths library, whose last bit may differ between processors and releases.
"""

import hashlib

import numpy as np

_HALF_WORDS = 8
# A sum of 8 uniform 16-bit integers has this mean, and a standard deviation of 53509.9.
_MEAN = _HALF_WORDS * 65535 / 2
_PER_STD = 1 / 53509.9


def bits(seed: str, count: int) -> np.ndarray:
    """`count` uint64 words of the Philox stream that belongs to `seed`."""
    key = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "little")
    return np.random.Philox(key=key).random_raw(count)


def integers(seed: str, count: int, bound: int) -> np.ndarray:
    """`count` int64 in [0, bound), for a bound far below 2**32."""
    return (bits(seed, count) % np.uint64(bound)).astype(np.int64)


def normal(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Close to normal, mean 0 and deviation 1, float64; a sum of integers, so within +-4.9."""
    count = int(np.prod(shape))
    words = bits(seed, count * _HALF_WORDS // 4).astype("<u8")
    sums = words.view("<u2").reshape(count, _HALF_WORDS).sum(axis=1, dtype=np.int64)
    return ((sums - _MEAN) * _PER_STD).reshape(shape)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Float64 sigmoid for |x| <= 16, from products and sums alone; relative error below 1e-12."""
    step = x * (-1 / 64)
    power = np.ones_like(step)
    for n in range(12, 0, -1):  # in place: these arrays are large, and new ones take four times as long
        power *= step
        power /= n
        power += 1
    for _ in range(6):
        power *= power
    power += 1
    return np.divide(1, power, out=power)
