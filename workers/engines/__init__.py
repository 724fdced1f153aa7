"""One file an engine: command line, readiness, metric names, capabilities."""
