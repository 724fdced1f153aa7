"""Load, replay and simulation: how the claims are measured."""
