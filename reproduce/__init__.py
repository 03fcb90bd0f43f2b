"""The papers' figures on tiny models: which runs each needs, how it is drawn, and how its claims are decided.

    figures/*.py -> jobs (sweeps) -> records -> panels (pictures), claims -> page

`python -m reproduce` runs what is missing, draws, and writes docs/results. It uses the public names of topr_exp alone.
"""
