"""Losses: each a frozen dataclass of hyper-parameters with a pure `__call__`; `base` has what they share."""
