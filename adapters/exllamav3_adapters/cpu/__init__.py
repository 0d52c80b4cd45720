"""exllamav3's own scheduler on a machine without a GPU.

`install.py` puts `extension.py` in the place of the compiled extension; `model.py` runs a transformers model
over exllamav3's pages through `attention.py`; `cache_layer.py` holds these pages. Nothing here is imported by
the package itself: importing it costs torch.
"""
