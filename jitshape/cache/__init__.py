"""The levels below the frame cache: graphs in memory (`graphs`), everything else on disk (`store`)."""
