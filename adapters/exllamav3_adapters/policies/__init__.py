"""What to keep in a cache. Pure: no torch, no I/O, no locks; the clock and the capacity are arguments."""
