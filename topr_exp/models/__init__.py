"""The models: loading any causal language model, and the tiny ones that ship with the package."""
