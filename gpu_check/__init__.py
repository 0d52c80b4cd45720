"""What can only be checked on a machine with a card: `python -m gpu_check`, or `make test-gpu`.

Every part runs on the CPU engine as well, over tiny models, which `make test` does: nothing but the card is new on the
day. A card is needed for the build of exllamav3's extension and for the conversion alone.
"""
