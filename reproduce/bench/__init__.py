"""A bench for losses: a row a loss, a column a condition, differences to TOPR.

    conditions -> cells (what each lacks) -> work (sweeps, records) -> scores -> table, picture

`python -m reproduce bench algo=NAME` gives a loss its row, a user's own too.
"""
