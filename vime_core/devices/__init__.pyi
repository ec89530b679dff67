from .cpu import CpuBackend as CpuBackend
