"""`build`: one file per builder."""
