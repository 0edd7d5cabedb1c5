"""GRPO on a small language model, every stage of the step on a tape.

    python -m rolltape.examples.grpo --dir runs/base --mode record
    python -m rolltape.examples.grpo --dir runs/base --mode replay --out runs/packed --layout packed

Read ``train.py`` first: it is the whole training loop. ``task.py`` has the prompts and the reward,
``model.py`` the model, ``layouts.py`` the ways to lay out samples for a forward pass, ``loss.py`` the loss.
"""
