"""What training jobs print when something is wrong: rows of name, words, cause and cure."""
