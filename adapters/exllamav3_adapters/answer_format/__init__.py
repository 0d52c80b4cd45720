"""What a model writes, taken apart: its reasoning, its text and its tool calls, by the form of its family.

`find_format.py` chooses the form when a model loads; `parsed_stream.py` applies it to an answer as it is generated.
No torch and no engine in here: the fake engine reads answers with the same code.
"""
