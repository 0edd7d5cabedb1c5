"""The interface of every engine: prompts in, completions with log-probs out."""
