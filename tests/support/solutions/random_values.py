"""Random tensors of a seed, of which tests make their inputs."""

import torch


class Draw:
    """Random tensors on a device, one after the other from one seed; no values on "meta"."""

    def __init__(self, device, seed=0):
        self.device = device
        self.generator = None
        if device != "meta":
            self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, device=self.device)

    def uniform(self, *shape):
        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, first, end, *shape, dtype=torch.int32):
        """Return integers from `first` to below `end`."""
        options = {"generator": self.generator, "device": self.device, "dtype": dtype}
        return torch.randint(first, end, shape, **options)

    def fp8(self, *shape):
        """Return FP8 of a normal distribution."""
        return self.normal(*shape).to(torch.float8_e4m3fn)

    def small_fp8(self, *shape):
        """Return bytes of FP8 with magnitudes up to 1.875, so never NaN."""
        whole = self.integers(0, 256, *shape, dtype=torch.uint8)
        return whole.bitwise_and_(0xBF).view(torch.float8_e4m3fn)

    def full_of_nan(self, *shape):
        """Return what a kernel should write to, in bf16."""
        return torch.full(shape, torch.nan, dtype=torch.bfloat16, device=self.device)

    def order(self, *shape):
        """Return the numbers below the last size in random order, for each row."""
        return self.uniform(*shape).argsort(-1)

    def mxfp4_weights(self, experts, columns, depth):
        """Return packed values [E, columns, depth / 2], two in a byte."""
        packed = self.integers(0, 256, experts, columns, depth // 2, dtype=torch.uint8)
        return packed.view(torch.int8)
