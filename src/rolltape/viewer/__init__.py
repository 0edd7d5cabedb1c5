"""Rollouts to look at: in a browser, as one HTML file, or full screen in a terminal.

Everything on a tape is text of strangers here: it is escaped, and what would be invisible or obeyed is
written out. Pages read the columns and the rows they show, and no more.
"""

from rolltape.viewer.launch import browse, export_html, serve

__all__ = ["browse", "export_html", "serve"]
