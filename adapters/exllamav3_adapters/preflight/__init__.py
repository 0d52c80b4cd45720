"""What is known of a model of engine `cuda` before anything is allocated: its faults, and the memory that it needs.

`run.py` is the whole of it, `__main__.py` the same in a process of its own. Every check is a pure function of the
settings, the machine (`machine.py`) and the model's files. What must ask torch or exllamav3 is in `read_machine.py` and
`ask_exllamav3.py` alone.
"""
