"""One file per command: it reads the arguments, calls one entry function and prints."""
