"""Content-addressed tables: runs share what is sampled, graded and scored.

`table.py` has the store, `shards.py` a table's files and their list columns as numpy views, `completions.py` JSON lines
in and out, and `python -m topr_exp.store` is the command line.
"""

from topr_exp.store.shards import Ragged
from topr_exp.store.table import Store, Table

__all__ = ["Ragged", "Store", "Table"]
