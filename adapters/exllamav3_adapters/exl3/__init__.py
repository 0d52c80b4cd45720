"""exllamav3's own scheduler behind the contract, whatever runs its forwards.

Modules here import exllamav3 at the top: on a machine without CUDA `exllamav3_adapters.cpu.install` must have run
before the first of them is imported.
"""
