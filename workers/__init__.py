"""Engine instances: their reports, adapters and life cycle."""
