"""What filters of text quality share: words and sentences, punctuation, and the counts that rules are made of."""
