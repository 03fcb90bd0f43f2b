"""The papers' figures on tiny models: which runs each needs, what is read from them, drawn, and said of the claims.

    figures.yaml -> tables -> jobs (sweeps) -> records -> draw, figure (claims) -> page

`python -m reproduce` runs what is missing, draws, and writes docs/results.
"""
