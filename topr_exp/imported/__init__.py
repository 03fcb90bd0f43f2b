"""Completions made elsewhere: read from a log, stored, encoded for a model, and described."""
