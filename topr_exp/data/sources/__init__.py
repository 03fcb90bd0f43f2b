"""Sources of problems: one class a file, named by the `_target_` of a choice of `data=` (docs/extending.md)."""
