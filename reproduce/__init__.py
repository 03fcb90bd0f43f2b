"""The papers' figures on tiny models: which runs each needs, what is read from them, drawn, and said of the claims.

    registry -> (sweeps) -> records -> proportions.py, training.py, ... -> page

`python -m reproduce` runs what is missing, draws, and writes docs/results.
"""
