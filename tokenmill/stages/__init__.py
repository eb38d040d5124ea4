"""What is done to a record on its way to tokens: decoding, splits, steps, engines. Each is a pure function."""
