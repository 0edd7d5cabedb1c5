"""What passes: gates, and the measured noise floor."""
