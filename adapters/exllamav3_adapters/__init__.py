"""Engines behind one contract (`contract.py`). Importing this package imports no engine."""
