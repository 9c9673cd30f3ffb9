"""Tests of what a GPU runs are collected only where one can be used."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_kernels.py", "test_programs.py"]
