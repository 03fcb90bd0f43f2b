"""Stage 4: the training set. Which completions are trained on, and how positives weigh against negatives."""
