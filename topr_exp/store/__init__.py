"""Content-addressed tables: runs share what is sampled, graded and scored.

`table.py`: the store; `shards.py`: a table's files, list columns as numpy views; `completions.py`: JSON lines.
"""

from topr_exp.store.shards import Ragged
from topr_exp.store.table import Store, Table

__all__ = ["Ragged", "Store", "Table"]
