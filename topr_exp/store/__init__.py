"""Content-addressed tables, through which runs share sampled, graded and scored completions.

`table.py`: the store; `shards.py`: a table's files, list columns as numpy views; `completions.py`: export.
"""

from topr_exp.store.shards import Ragged
from topr_exp.store.table import Store, Table

__all__ = ["Ragged", "Store", "Table"]
