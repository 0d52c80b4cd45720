"""Where captured heads outlive the process. All I/O is on one thread of the store's own."""
