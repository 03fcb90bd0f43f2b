"""Products of matrices near float32's accuracy on tensor cores.

A float32 matrix is the sum of two in bfloat16, and of the four products of such halves three are summed in float32; the
product of the two low halves is 2^-16 of the whole.
"""

import torch
from torch import Tensor

from topr_exp.runtime.machine import FIRST_BFLOAT16_GPU

# A matrix as a sum: (matrix,), or the (high, low) bfloat16 halves of a float32 one.
Parts = tuple[Tensor, ...]


def has_tensor_cores(weight: Tensor) -> bool:
    """True where products of bfloat16 matrices are many times as fast as of float32 ones: on GPUs from Ampere on.

    Older ones (T4, RTX 20) have no bfloat16: cuBLAS refuses its products that end in float32.
    """
    if not weight.is_cuda:
        return False
    return torch.cuda.get_device_capability(weight.device) >= FIRST_BFLOAT16_GPU


def split(matrix: Tensor) -> Parts:
    """Split a float32 matrix into the sum of two in bfloat16, up to 2^-16 of each value."""
    high = matrix.to(torch.bfloat16)
    remainder = matrix - high
    return high, remainder.to(torch.bfloat16)


def transpose(parts: Parts) -> Parts:
    return tuple(part.T for part in parts)


def product(lhs: Parts, rhs: Parts) -> Tensor:
    """Compute lhs @ rhs, summed in float32 (float64 for float64)."""
    matrix = lhs[0]
    shape = (len(matrix), rhs[0].shape[1])
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    total = matrix.new_zeros(shape, dtype=dtype)
    add_product(total, lhs, rhs)
    return total


def add_product(total: Tensor, lhs: Parts, rhs: Parts) -> None:
    """Add lhs @ rhs to `total` in place, without the product of two low halves; the smallest products first."""
    for lhs_index in reversed(range(len(lhs))):
        for rhs_index in reversed(range(len(rhs))):
            both_are_low = lhs_index == 1 and rhs_index == 1
            if not both_are_low:
                add_matrix_product(total, lhs[lhs_index], rhs[rhs_index])


def add_matrix_product(total: Tensor, lhs: Tensor, rhs: Tensor) -> None:
    """Add the product of two matrices of one dtype to a float32 matrix (float64 for float64) in place."""
    dtype = total.dtype
    if lhs.is_cuda and lhs.dtype is not dtype:
        torch.addmm(total, lhs, rhs, out_dtype=dtype, out=total)
        return
    # Products of two bfloat16 numbers are exact in float32, so this is what tensor cores compute.
    total.addmm_(lhs.to(dtype), rhs.to(dtype))
