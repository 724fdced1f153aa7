"""The command line's root."""


def main() -> None:
    """Run the command line."""
