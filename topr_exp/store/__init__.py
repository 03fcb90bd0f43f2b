"""Content-addressed tables: what one run sampled, graded or scored, every other run reads.

`table.py` has the store, `keys.py` names its tables, `shards.py` reads and writes a table's files,
`ragged.py` gives list columns as numpy views, and `python -m topr_exp.store` is the command line.
"""

from topr_exp.store.shards import Ragged
from topr_exp.store.table import Store, Table

__all__ = ["Ragged", "Store", "Table"]
