"""What makes the files that are made: ``python start.py refresh`` runs it, and tests compare."""
