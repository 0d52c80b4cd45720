"""The engine for GPUs: exllamav3's own classes with its compiled extension.

`engine.py` is what the registry names. The other modules import torch and exllamav3 at the top; they are imported at
load, in the process that hosts the engine. Everything above the model is `exl3/`, which the CPU engine shares.
"""
