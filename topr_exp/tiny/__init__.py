"""The models that ship with the package, which any CPU trains: weights, recipes, tokenizer and pre-training."""
