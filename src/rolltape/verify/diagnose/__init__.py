"""What a divergence looks like, where it comes from, and whether both runs began alike."""
