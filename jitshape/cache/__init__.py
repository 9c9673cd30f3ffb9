"""The levels below the frame cache: graphs in memory (`graphs`), all else on disk (`store`)."""
