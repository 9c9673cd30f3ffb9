"""`python -m jitshape`: the command line (cli.py)."""

from jitshape.cli import main

if __name__ == "__main__":
    main()
