"""datatrove's filters beside ours: the same verdicts, reasons and texts."""
