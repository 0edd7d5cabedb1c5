"""A recorded stage computed again from the tape alone."""
