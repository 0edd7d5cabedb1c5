"""The rollout viewer: ``rolltape view`` in a browser, ``rolltape browse`` in a terminal.

Everything on a tape is text of strangers here: it is escaped, and what would be invisible or obeyed is
written out. Pages read the columns and the rows they show, and no more.
"""
