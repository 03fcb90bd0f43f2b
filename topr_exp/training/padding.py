"""Layout of numbers by token as [B, T]: a completion's from column 0 on, then padding."""

from topr_exp.types import Tensor


def pad_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Spread values [N] or [N, k] of the tokens of all completions to [B, T] or [B, T, k], 0 where `mask` is False."""
    zeros = values.new_zeros((*mask.shape, *values.shape[1:]))
    if values.ndim == 2:
        mask = mask[..., None]
    return zeros.masked_scatter(mask, values)
