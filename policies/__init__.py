"""What operators may change live, and the pure code that interprets it."""
