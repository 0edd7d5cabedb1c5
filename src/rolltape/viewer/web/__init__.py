"""The viewer in a browser: pages, plots, the server and the single file."""
