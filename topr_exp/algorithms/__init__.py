"""The losses: each a frozen dataclass of hyper-parameters with a pure `__call__`; `base` says what they share."""
