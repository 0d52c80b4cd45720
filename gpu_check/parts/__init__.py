"""One part of the check a file."""
