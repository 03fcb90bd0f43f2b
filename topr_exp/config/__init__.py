"""The settings of a run: dataclasses for each group of `conf/`, rules between groups, loading, identity."""
