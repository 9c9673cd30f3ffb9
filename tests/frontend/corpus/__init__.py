"""Small programs over the features of the language.  Every function named with a leading `p_`
is run by tests/frontend/test_corpus.py on its own `cases`, traced and plain."""
