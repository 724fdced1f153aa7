"""The admin plane: what operators read and change, on its own listener."""
