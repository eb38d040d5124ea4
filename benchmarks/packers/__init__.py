"""What else makes files of tokens from files of text: scripts, each of which reads JSON lines and prints what it took.

They need nothing of TokenMill. Each is called with the file, a ``tokenizer.json`` and an empty folder; it prints a line
of JSON with its seconds, from the first document on until its files are closed, and its tokens.
"""
