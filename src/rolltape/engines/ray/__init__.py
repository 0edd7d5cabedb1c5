"""Any engine as replicas on a Ray cluster."""
